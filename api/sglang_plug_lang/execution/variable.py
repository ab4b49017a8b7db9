"""Variables of programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Variable:
    """A variable's value, and its text as it grows."""

    value: Any = None
    meta_info: dict[str, Any] = field(default_factory=dict)
    pieces: list[str] = field(default_factory=list)
    piece_meta_info: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Facts about generated pieces, by position."""
    pending: int = 0
    """Number of queued expressions that will set it."""

    def copy(self) -> Variable:
        """Return an independent copy."""
        return Variable(self.value, self.meta_info, list(self.pieces), dict(self.piece_meta_info))
