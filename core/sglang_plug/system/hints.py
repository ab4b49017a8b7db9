"""Hints of error messages about unknown names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

FEW = 6
"""Maximum number of names that a hint lists."""
MIN_ABBREVIATION = 4
"""Shortest text that is looked for at the start of names, dashes included."""
MAX_SHOWN = 4
"""Maximum number of names that an ambiguous abbreviation is answered with."""


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


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean …?"`` with the names that ``name`` abbreviates or the nearest one; empty if none is."""
    names = list(known)
    start = name.replace("_", "-")
    meant = (
        [name for name in names if name.replace("_", "-").startswith(start)] if len(start) >= MIN_ABBREVIATION else []
    )
    if not meant:
        meant = get_close_matches(name, names, 1)
    if not meant:
        return ""
    suggestions = ", ".join(map(repr, meant[:MAX_SHOWN]))
    return f"; did you mean {suggestions}?" if len(meant) == 1 else f"; did you mean one of {suggestions}?"
