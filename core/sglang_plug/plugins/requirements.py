"""Requirements of components: modules that must be installed, with least versions."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Sequence
from itertools import takewhile

AT_LEAST = ">="


def unmet(needs: Sequence[str]) -> str:
    """Return why the requirements ``needs`` (``module``, ``module>=1.2``) are not met, or an empty string."""
    wrong = [text for text in map(_wrong, needs) if text]
    return f"not installed: {', '.join(wrong)}" if wrong else ""


def _wrong(need: str) -> str:
    name, _, least = need.partition(AT_LEAST)
    if not _importable(name):
        return need
    if not least:
        return ""
    try:
        installed = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:  # from a folder: nobody knows
        return ""
    return f"{need} (there is {installed})" if _release(installed) < _release(least) else ""


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version: those of ``5.18.0rc1+cpu`` are 5 and 18."""
    return tuple(int(part) for part in takewhile(str.isdecimal, version.partition("+")[0].split(".")))


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
