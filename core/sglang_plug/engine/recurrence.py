"""What a step does with recurrent states besides the model's part: brings them along, and copies what is to be kept."""

from __future__ import annotations

from collections.abc import Sequence as Ordered

import torch

from sglang_plug.recurrent import SPARE, Recurrent, Runs, StatePool
from sglang_plug.transfer import upload

from .shares import Share


class StateSteps:
    """Queues copies of states before and behind each step.

    They are queued in the order in which steps were planned, so that a row may go to another sequence as soon as the
    accounts (``StateRows``) say so.
    """

    def __init__(self, pool: StatePool) -> None:
        self.pool = pool

    def begin(self, shares: Ordered[Share]) -> None:
        """Before a step: sequences that are computed for the first time get the state that they go on from."""
        held = [one for share in shares if (one := share.sequence.held) is not None and one.origin is not None]
        if not held:
            return
        self._copy([one.origin or 0 for one in held], [one.row for one in held])
        for one in held:
            one.origin = None

    def of(self, shares: Ordered[Share], lengths: list[int]) -> Recurrent:
        """The states of ``shares``, which compute ``lengths`` tokens."""
        rows = [SPARE if share.sequence.held is None else share.sequence.held.row for share in shares]
        return Recurrent(self.pool, Runs.of(rows, lengths, self.pool.device))

    def end(self, shares: Ordered[Share]) -> None:
        """Behind a step: states at places that the prefix cache is to know are copied."""
        sources, targets = [], []
        for share in shares:
            held = share.sequence.held
            if held is None:
                continue
            held.reached = share.end
            if share.end in held.kept:
                sources.append(held.row)
                targets.append(held.kept[share.end])
        if sources:
            self._copy(sources, targets)

    def _copy(self, sources: list[int], targets: list[int]) -> None:
        device = self.pool.device
        self.pool.copy(upload(sources, torch.int64, device), upload(targets, torch.int64, device))
