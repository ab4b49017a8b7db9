"""The contract of drafters for speculative decoding: proposing tokens so that a step computes several of a sequence.

A draft never changes an output. The engine computes the drafted tokens after the last known one, samples each token as
it would have done without drafts, and keeps the drafts that are equal to the samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence


class SequenceDrafter(ABC):
    """Proposes tokens for one sequence. It receives each token once, so that a proposal need not read the context."""

    @abstractmethod
    def propose(self, tokens: Sequence[int], max_draft_tokens: int) -> Sequence[int]:
        """Propose at most ``max_draft_tokens`` tokens that may come next; an empty proposal costs nothing.

        Called between steps, while nothing else runs: it should take microseconds. A wrong token, and all tokens after
        it, are computed in vain.

        Args:
            tokens: output tokens since the last call. Never empty in the first call.
            max_draft_tokens: at least 1.
        """

    def end(self, tokens: Sequence[int]) -> None:  # noqa: B027 - most need not know
        """End the sequence, which finished or was aborted; ``tokens`` are the output tokens since the last call."""


class Drafter(ABC):
    """Makes a drafter for each sequence, and may learn from all of them. Lives in one thread of the engine process.

    The first exception, or invalid proposal, is logged and ends drafting; generation continues without.
    """

    @abstractmethod
    def begin(self, prompt: Sequence[int], *, salt: str) -> SequenceDrafter:
        """Return the drafter of a sequence that generates. Called once per sequence; for some only when they have
        finished.

        Args:
            prompt: tokens of the prompt; those of images are placeholders.
            salt: data from a sequence may be used only for sequences with the same salt.
        """
