"""Sampling state of a batch that does not change from step to step while the same sequences are in the batch.

It is copied to the device once, in copies that the host does not wait for, and stays there.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered

import torch
from torch import Tensor

from sglang_plug.contracts.request import LogprobOptions
from sglang_plug.engine.scheduling.sequence import Sequence
from sglang_plug.ops.host_device_copy import send
from sglang_plug.ops.sampling import SamplingOptions

from .processor_batch import groups_of
from .rows import Rows


class SamplingBatch:
    """The sequences of a batch, with their sampling options.

    Args:
        sequences: in the order of the rows.
        width: number of tokens in the vocabulary.
        device: the device of the logits.
    """

    def __init__(self, sequences: Ordered[Sequence], width: int, device: torch.device) -> None:
        self.sequences, self.width, self.device = list(sequences), width, device
        count = len(self.sequences)
        self.groups = groups_of(self.sequences, device)
        reporting = [row for row, sequence in enumerate(self.sequences) if sequence.request.logprobs is not None]
        self.reporting = Rows(reporting, count, device)
        self.reported = [self.sequences[row].request.logprobs or LogprobOptions() for row in reporting]
        drawn = [row for row, sequence in enumerate(self.sequences) if not sequence.request.params.greedy]
        self.drawn = Rows(drawn, count, device)
        self.options: SamplingOptions | None = None
        if drawn:
            params = [self.sequences[row].request.params for row in drawn]
            self.options = SamplingOptions.of(params, width, lambda tensor: send(tensor, device))

    def continues(self, earlier: SamplingBatch, ahead: Ordered[int]) -> None:
        """Take over the logits processors' state of sequences that were also in the previous batch."""
        known = {group.loaded: group for group in earlier.groups}
        for group in self.groups:
            if (before := known.get(group.loaded)) is not None:
                group.continues(before, ahead)

    def holds(self, sequences: Ordered[Sequence], logits: Tensor) -> bool:
        """Report whether the batch has exactly these sequences, in this order, and logits of this width and device."""
        return self.sequences == list(sequences) and (self.width, self.device) == (logits.shape[-1], logits.device)
