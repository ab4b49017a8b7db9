"""Compares the present contract with the released ones: a change that breaks plugins must be declared and announced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sglang_plug_api.contract.changes import Change, compare
from sglang_plug_api.contract.surface import Surface, version_key

ROUTES = "sglang_plug_api.plugin."
WARNED_VERSIONS = 2
"""Released versions in which something must be deprecated before it is removed."""


def undeclared_breaks(released: Sequence[Surface], present: Surface, changelog: str) -> list[str]:
    """Return what is wrong with the present contract after those that were released, in ascending order."""
    released = [version for version in released if version_key(version.contract) < version_key(present.contract)]
    if not released:
        return []
    last = released[-1]
    breaks = [change for change in compare(last, present) if change.level == "breaking"]
    return [*_undeclared(breaks, last, present, changelog), *_sudden(breaks, released)]


def _undeclared(breaks: Sequence[Change], last: Surface, present: Surface, changelog: str) -> Iterator[str]:
    rises = version_key(present.contract)[0] > version_key(last.contract)[0]
    for change in breaks:
        if not rises and not (change.name.startswith(ROUTES) and present.routes > last.routes):
            number = "ROUTE_API_VERSION" if change.name.startswith(ROUTES) else "API_VERSION"
            yield f"{change.title} {change.text}: this breaks plugins; undo it or raise {number}"
        elif f"`{change.title}`" not in changelog:
            yield f"{change.title} {change.text}: CHANGELOG.md does not mention `{change.title}`"


def _sudden(breaks: Sequence[Change], released: Sequence[Surface]) -> Iterator[str]:
    """Yield what was removed without a warning in enough versions."""
    for change in breaks:
        if change.text == "was removed":
            warned = sum(_warns(surface, change) for surface in released[-WARNED_VERSIONS:])
            if warned < WARNED_VERSIONS:
                yield (
                    f"{change.title} was removed, but was deprecated in {warned} of the last {WARNED_VERSIONS} versions"
                )


def _warns(surface: Surface, change: Change) -> bool:
    item = surface.items.get(change.name)
    if item is None:
        return False
    if change.member is None:
        return item.kind == "renamed" or bool(item.deprecated)
    return change.member in item.members and bool(item.members[change.member].deprecated)
