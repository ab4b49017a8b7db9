"""Hints of error messages about unknown names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

FEW = 6
"""Maximum number of names that a hint lists."""


def nearest_names(name: str, known: Iterable[str], kind: str) -> str:
    """Return a clause with the known name that was probably meant, or else the nearest few; ``kind`` says of what."""
    names = list(dict.fromkeys(known))
    if near := get_close_matches(name, names, 1):
        return f"did you mean {near[0]!r}?"
    if not names:
        return f"no {kind} is declared"
    if len(names) <= FEW:
        return f"known: {', '.join(names)}"
    nearest = get_close_matches(name, names, FEW, cutoff=0.0)
    return f"the nearest {kind} names are {', '.join(nearest)} ({len(names)} are known)"
