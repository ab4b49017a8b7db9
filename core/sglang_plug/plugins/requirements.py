"""Requirements of components: modules that must be installed, with minimum versions."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Sequence
from itertools import takewhile

AT_LEAST = ">="
OF_EXTRA = re.compile(r"""(?P<name>[\w.-]+).*;.*\bextra *== *["'](?P<extra>[\w.-]+)["']""")
"""A requirement of an extra, in the metadata of a distribution."""


def unmet(needs: Sequence[str]) -> str:
    """Return why the requirements ``needs`` (``module``, ``module>=1.2``) are not met, or an empty string."""
    wrong = [text for text in map(_wrong, needs) if text]
    return f"not installed: {', '.join(wrong)}" if wrong else ""


def remedy(needs: Sequence[str], distribution: str) -> str:
    """Return the extra of ``distribution`` that installs what is missing of ``needs``, for pip; empty if none does."""
    try:
        requires = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:  # a file or folder
        return ""
    missing = [_distributions(need.partition(AT_LEAST)[0]) for need in needs if _wrong(need)]
    extras: dict[str, set[str]] = {}
    for line in requires:
        if match := OF_EXTRA.match(line):
            extras.setdefault(match["extra"], set()).add(_normalise(match["name"]))
    if not missing:
        return ""
    sizes = [(len(names), extra) for extra, names in extras.items() if all(map(names.intersection, missing))]
    return f"pip install '{distribution}[{min(sizes)[1]}]'" if sizes else ""


def _distributions(module: str) -> set[str]:
    """Return the names of distributions that may contain ``module``: the same, or one that adds the language."""
    name = _normalise(module.partition(".")[0])
    return {name, f"{name}-python", f"python-{name}", f"py{name}"}


def _normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _wrong(need: str) -> str:
    name, _, minimum = need.partition(AT_LEAST)
    if not _importable(name):
        return need
    if not minimum:
        return ""
    try:
        installed = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:  # from a folder: nobody knows
        return ""
    return f"{need} (there is {installed})" if _release(installed) < _release(minimum) else ""


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version: those of ``5.18.0rc1+cpu`` are 5 and 18."""
    return tuple(int(part) for part in takewhile(str.isdecimal, version.partition("+")[0].split(".")))


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
