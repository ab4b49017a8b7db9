"""How much of the system's memory this process may yet take. A container's limit counts, too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class GroupFiles:
    """Where a version of control groups says what a group may take and has."""

    limit: str
    usage: str
    cached: str
    """The entry of ``memory.stat`` with pages of files that can be given back at once."""


VERSION_1 = GroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
VERSION_2 = GroupFiles("memory.max", "memory.current", "inactive_file")


def available_bytes(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Bytes that can be taken without anybody being ended for it; what only caches files counts as free."""
    return max(0, min([_of_system(proc), *_of_groups(proc, groups)]))


def _of_system(proc: Path) -> int:
    found = _entries(proc / "meminfo").get("MemAvailable:")
    if found is not None:
        return found * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _of_groups(proc: Path, groups: Path) -> Iterator[int]:
    """What is left to each group with a limit that this process is in, from the innermost on."""
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, place = line.split(":", 2)
        if controllers == "":
            root, files = groups, VERSION_2
        elif "memory" in controllers.split(","):
            root, files = groups / "memory", VERSION_1
        else:
            continue
        folder = root / place.lstrip("/")
        for one in [folder, *folder.parents]:
            left = _left(one, files)
            if left is not None:
                yield left
            if one == root:
                break


def _left(folder: Path, files: GroupFiles) -> int | None:
    limit, usage = _text(folder / files.limit).strip(), _text(folder / files.usage).strip()
    if not limit.isdecimal() or not usage.isdecimal():  # none of that here, or "max"
        return None
    return int(limit) - int(usage) + _entries(folder / "memory.stat").get(files.cached, 0)


def _entries(file: Path) -> dict[str, int]:
    """Lines that begin with a name and a number."""
    parts = (line.split() for line in _text(file).splitlines())
    return {part[0]: int(part[1]) for part in parts if len(part) > 1 and part[1].isdecimal()}


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
