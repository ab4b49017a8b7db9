"""A step on the device: the parts of its result that the host can use at once, and those it must wait for."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from torch import Tensor

from sglang_plug.contracts.extension.execution import DeviceTokens

from .scheduled_chunk import ScheduledChunk, StepResult
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step whose forward pass and sampling are queued on the device."""

    sequences: list[Sequence]
    """The sequences that get a token."""
    tokens: Tensor | None
    """``[len(sequences)]`` int64 on the device: their tokens, -1 where there is none; ``None`` without sequences."""
    results: Callable[[], list[StepResult]]
    """Waits for the step and returns one result for each chunk."""

    def tokens_for(self, chunks: Ordered[ScheduledChunk], rows: Callable[[list[int]], Tensor]) -> DeviceTokens | None:
        """Return the tokens that ``chunks`` of the next step take from this one; ``None`` if the host knows all.

        ``rows`` copies numbers to the device.
        """
        indices = [index for index, chunk in enumerate(chunks) if chunk.pending_on_device]
        if self.tokens is None or not indices:
            return None
        sequences = [chunks[index].sequence for index in indices]
        if sequences == self.sequences:
            return DeviceTokens(indices, self.tokens.clamp(min=0))
        row_by_id = {id(sequence): row for row, sequence in enumerate(self.sequences)}
        return DeviceTokens(
            indices, self.tokens[rows([row_by_id[id(sequence)] for sequence in sequences])].clamp(min=0)
        )


@dataclass(frozen=True, slots=True)
class DeferredSampling:
    """A step whose forward pass is queued, but not its sampling, which depends on the tokens of the previous step."""

    sample: Callable[[Ordered[ScheduledChunk]], LaunchedStep]
    """Queues the sampling once the previous step is committed; takes the chunks in their state after that."""
