"""A step on the device: what the host can already use of it, and what it must wait for."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from torch import Tensor

from .sequence import Sequence
from .shares import Sampled, Share


@dataclass(frozen=True, slots=True)
class Given:
    """Input tokens of a step that only the device knows: each is the last one of a share."""

    places: list[int]
    """The shares', in ascending order."""
    tokens: Tensor
    """``[len(places)]`` int64 on the device."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A step of which everything is queued."""

    sequences: list[Sequence]
    """Those that get a token."""
    tokens: Tensor | None
    """``[len(sequences)]`` int64 on the device: these tokens, -1 where there is none; ``None`` without sequences."""
    results: Callable[[], list[Sampled]]
    """Waits for the step; one result for each share."""

    def given(self, shares: Ordered[Share], rows: Callable[[list[int]], Tensor]) -> Given | None:
        """What ``shares``, of the step after this one, take from it; ``None`` if the host knows all their tokens.

        ``rows`` brings numbers to the device.
        """
        places = [place for place, share in enumerate(shares) if share.unseen]
        if self.tokens is None or not places:
            return None
        taking = [shares[place].sequence for place in places]
        if taking == self.sequences:
            return Given(places, self.tokens.clamp(min=0))
        found = {id(sequence): row for row, sequence in enumerate(self.sequences)}
        return Given(places, self.tokens[rows([found[id(one)] for one in taking])].clamp(min=0))


@dataclass(frozen=True, slots=True)
class Postponed:
    """A step whose forward pass is queued. Which tokens may be chosen depends on those of the step before."""

    choose: Callable[[Ordered[Share]], Launched]
    """Queues the rest, once the step before is committed; takes the shares as they are then."""
