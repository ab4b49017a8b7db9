"""Sequences as schedule policies see them."""

from __future__ import annotations

from collections.abc import Sequence


class Queued:
    """A sequence with nothing but what a schedule policy may read."""

    __slots__ = ("_arrived", "_caller", "_computed", "_deadline", "_priority", "_tokens", "__weakref__")

    def __init__(
        self,
        tokens: Sequence[int],
        priority: int,
        arrived: float,
        caller: str = "",
        deadline: float | None = None,
        computed: int = 0,
    ) -> None:
        self._tokens, self._priority, self._arrived = tokens, priority, arrived
        self._caller, self._deadline, self._computed = caller, deadline, computed

    @property
    def tokens(self) -> Sequence[int]:
        return self._tokens

    @property
    def priority(self) -> int:
        return self._priority

    @property
    def arrived(self) -> float:
        return self._arrived

    @property
    def caller(self) -> str:
        return self._caller

    @property
    def deadline(self) -> float | None:
        return self._deadline

    @property
    def computed(self) -> int:
        return self._computed

    def __repr__(self) -> str:
        return f"<{len(self._tokens)} tokens, priority {self._priority}, arrived {self._arrived}>"
