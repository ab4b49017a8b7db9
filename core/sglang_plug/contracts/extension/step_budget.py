"""The phase of step extensions that choose how many prompt tokens a step has, for instance from learned durations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .views import ChunkView


class PromptBudget(Protocol):
    """The prompt tokens that one step may still have, within the token budget of every step (``chunk_size``)."""

    def tokens(self, start: int) -> int:
        """Return how many prompt tokens the step may add to a sequence with ``start`` computed tokens; 0 or less: none.

        The engine adds fewer where its token budget is smaller, and more where a prompt must not be cut there.
        """

    def add(self, start: int, count: int) -> None:
        """Record that the step computes ``count`` prompt tokens of a sequence, after ``start`` that are computed."""

    def add_drafts(self, start: int, count: int) -> bool:
        """Report whether the step may also compute ``count`` draft tokens after ``start`` tokens; if so, they count.

        Called after all prompt tokens are added.
        """


class StepBudgetPhase:
    """The number of prompt tokens of each step. Override what is needed; only one extension may have this phase.

    Without such an extension, steps have as many prompt tokens as their token budget allows.
    """

    def prompt_budget(self, decoding: Sequence[ChunkView]) -> PromptBudget | None:
        """Return the budget of a step that also computes ``decoding``, sequences that decode; ``None``: no limit.

        Called for each step for which there are prompts, when the sequences that decode are planned. A prompt for
        which no step ever has tokens is never computed.
        """
        return None

    def step_computed(self, chunks: Sequence[ChunkView], seconds: float, *, has_prompts: bool) -> None:
        """A step of ``chunks``, which are not committed yet, took ``seconds``; not called if the step failed.

        ``has_prompts`` is False if all chunks decode. This is called for each step, so return at once for most steps
        that only decode: the number of their chunks may be large.
        """
