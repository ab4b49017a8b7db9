"""The white space between the tokens of JSON."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Whitespace:
    """What may stand there: ``json.dumps``'s single blanks, or up to ``most`` characters of any kind if ``free``."""

    free: bool = False
    most: int = 16
