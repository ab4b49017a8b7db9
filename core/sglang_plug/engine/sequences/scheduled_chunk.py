"""The chunks of a step, and their results.

The classes are not frozen, although little changes their objects: one of each is constructed for every sequence in
every step, and constructing a frozen dataclass takes four times as long.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from sglang_plug.contracts.request import Finish, TokenLogprob

from .sequence import Sequence


@dataclass(slots=True)
class ScheduledChunk:
    """One sequence's part of a step: its next ``count`` tokens, and draft tokens after them."""

    sequence: Sequence
    count: int
    ahead: int = 0
    """Number of this sequence's tokens in the previous step, if that step is still on the device."""
    drafts: tuple[int, ...] = ()
    """Draft tokens that are computed after the sequence's last token."""

    @property
    def start(self) -> int:
        """Index in the sequence of the chunk's first token."""
        return self.sequence.computed + self.ahead

    @property
    def end(self) -> int:
        """Index in the sequence after the chunk's last token, without drafts."""
        return self.sequence.computed + self.ahead + self.count

    @property
    def width(self) -> int:
        """Number of positions that the step computes for the chunk, drafts included."""
        return self.count + len(self.drafts)

    @property
    def draft_end(self) -> int:
        """Index in the sequence after the last draft token."""
        return self.sequence.computed + self.ahead + self.count + len(self.drafts)

    @property
    def positions(self) -> Iterable[int]:
        """Positions of the chunk's tokens and drafts, as the model counts them."""
        layout, start = self.sequence.layout, self.sequence.computed + self.ahead
        end = start + self.count + len(self.drafts)
        return range(start, end) if layout is None else layout.positions(start, end)

    @property
    def pending_on_device(self) -> bool:
        """True if the previous step samples the last token of this chunk, so that only the device knows it."""
        return self.sequence.computed + self.ahead + self.count > len(self.sequence.tokens)

    @property
    def prefilling(self) -> bool:
        """True if these are tokens of a prompt, or of a sequence that is computed again; unknown after the commit."""
        return self.count > self.sequence.last_step_len

    @property
    def complete(self) -> bool:
        """True if the step computes the sequence's last token, so that the next one can be sampled."""
        return self.sequence.computed + self.ahead + self.count >= len(self.sequence.tokens)

    @property
    def committed(self) -> ScheduledChunk:
        """The same chunk after the previous step has been committed."""
        return replace(self, ahead=0)

    @property
    def continues(self) -> bool:
        """True if the sequence has more to compute after this chunk, unless its next token ends the output."""
        return not self.complete or len(self.sequence.tokens) + 1 < self.sequence.limit

    @property
    def predictable(self) -> bool:
        """True if the next step can be planned and its forward pass launched before the result of this one is known."""
        request = self.sequence.request
        if request.task != "generate" or self.drafts:
            return False
        return request.logprobs is None or (self.complete and not self.sequence.constrained)

    @property
    def dropped(self) -> bool:
        """True if the sequence ended or was aborted while the chunk was on the device: the result is not needed."""
        return not self.sequence.slots


@dataclass(slots=True)
class StepResult:
    """The runner's result for one chunk: the next token (``None`` before the prompt is complete)."""

    token: int | None = None
    logprob: TokenLogprob | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    error: str | None = None
    status: int = 500
    """HTTP status of the error."""
    forced: tuple[int, ...] = ()
    """Tokens that must follow ``token``; they are appended without being sampled."""
    forced_logprobs: tuple[TokenLogprob, ...] = ()
    """Log-probabilities of earlier forced tokens, if requested."""
    accepted_tokens: tuple[tuple[int, TokenLogprob | None], ...] = ()
    """The tokens after ``token`` that the step sampled, because the draft before each of them was accepted."""
    finish: Finish | None = None
    """Set if a step extension ends the output; it also handles the stop tokens of a constrained output."""
    rejected: bool = False
    """A step extension rejected the sampled token, so there is no token. Unless ``finish`` is set, another one is
    sampled at the same position."""
    values: tuple[float, ...] | None = None
    """The result of a pooling task, once the prompt is complete."""


@dataclass(slots=True)
class StepCounters:
    """Counters of one step, for statistics."""

    prefill_sequences: int = 0
    prefill_tokens: int = 0
    cached_tokens: int = 0
    decode_sequences: int = 0
    retracted: int = 0
    forced_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    queue_seconds: list[float] = field(default_factory=list)

    @property
    def has_prompts(self) -> bool:
        """True if the step computes tokens of prompts."""
        return self.prefill_sequences > 0

    def add(self, chunks: Iterable[ScheduledChunk]) -> None:
        """Count the sequences and tokens of ``chunks``."""
        for chunk in chunks:
            if chunk.prefilling:
                self.prefill_sequences += 1
                self.prefill_tokens += chunk.count
            else:
                self.decode_sequences += 1
