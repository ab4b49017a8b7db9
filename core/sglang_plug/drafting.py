"""Contract of drafters: whoever guesses how an output goes on, so that several tokens are computed in one step.

A guess never changes an output. The engine computes the drafted tokens behind the last one that is known, draws each
token as it would have done without, and keeps drafts as long as they are what it drew.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence


class SequenceDrafter(ABC):
    """Guesses for one sequence. It is told of each token once, so that a guess need not cost as much as the context."""

    @abstractmethod
    def propose(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        """How the sequence may go on: at most ``most`` tokens of the vocabulary, the next one first; empty if there is
        nothing to say, which costs nothing.

        Called between steps, while nothing else is done: it should take microseconds. What it is wrong about, and all
        behind that, is computed in vain.

        Args:
            tokens: of the output, those that have come since the last call. Never empty in the first call.
            most: at least 1.
        """

    def end(self, tokens: Sequence[int]) -> None:  # noqa: B027 - most need not know
        """The output is over, or its request was aborted; ``tokens`` are those that have come since the last call."""


class Drafter(ABC):
    """Makes what guesses, and may know what sequences have in common. Lives in the engine process, in one thread.

    What it raises, or proposes against its contract, is logged once and ends drafting; outputs go on without.
    """

    @abstractmethod
    def begin(self, prompt: Sequence[int], *, salt: str) -> SequenceDrafter:
        """A sequence that generates: each of them once, some of them only when they are over.

        Args:
            prompt: its tokens; those of images are placeholders.
            salt: what is learned from a sequence may be used only for sequences of the same salt.
        """
