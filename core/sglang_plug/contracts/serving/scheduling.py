"""The contract of schedule policies: the order in which waiting sequences are admitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from sglang_plug.contracts.serving.cache import Match

if TYPE_CHECKING:
    pass


class Waiting(Protocol):
    """A sequence in the queue, as a schedule policy sees it."""

    @property
    def tokens(self) -> Sequence[int]:
        """The prompt, and the tokens that were generated before a retraction."""

    @property
    def priority(self) -> int:
        """The request's priority; higher is more urgent."""

    @property
    def arrived(self) -> float:
        """Time at which the request reached the server, ``time.time()``."""


class SchedulePolicy(Protocol):
    """Decides the order in which waiting sequences are admitted."""

    def order(self, waiting: Sequence[Waiting], match: Callable[[Waiting], Match]) -> Sequence[Waiting]:
        """Return the same sequences in the order of admission. ``match`` looks a sequence up in the prefix cache."""
