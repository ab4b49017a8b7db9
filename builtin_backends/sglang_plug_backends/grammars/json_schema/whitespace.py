"""White space between the tokens of JSON."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Whitespace:
    """Allowed whitespace: single blanks as in ``json.dumps``, or up to ``max_length`` arbitrary ones if ``free``."""

    free: bool = False
    max_length: int = 16
