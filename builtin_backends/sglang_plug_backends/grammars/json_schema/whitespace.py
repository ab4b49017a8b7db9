"""White space between the tokens of JSON."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Whitespace:
    """The allowed white space: single blanks as in ``json.dumps``, or up to ``most`` arbitrary ones if ``free``."""

    free: bool = False
    most: int = 16
