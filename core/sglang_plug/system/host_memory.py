"""The system memory that is still available to this process, container limits included."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class GroupFiles:
    """The files in which a version of control groups reports the limit and the usage of a group."""

    limit: str
    usage: str
    cached: str
    """The entry of ``memory.stat`` with file pages that can be reclaimed at once."""
    pressure: str = ""
    """The file with the times for which processes of the group waited for memory; empty if the version has none."""


VERSION_1 = GroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
VERSION_2 = GroupFiles("memory.max", "memory.current", "inactive_file", "memory.pressure")


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Memory that the system, or a container's limit, leaves to this process, in bytes."""

    available: int
    """Bytes that can be allocated before the kernel kills a process for lack of memory."""
    total: int
    """Total bytes: the system's memory, or the lowest limit."""
    stalled: float = 0.0
    """Percent of the last ten seconds in which all processes waited for memory."""


def host_memory(proc: Path = PROC, groups: Path = GROUPS) -> HostMemory:
    """Read the current state of the memory."""
    folders = list(_folders(proc, groups))
    limits = [limit for folder, files in folders if (limit := _number(folder / files.limit)) is not None]
    total = _entries(proc / "meminfo").get("MemTotal:", 0) * 1024 or _pages("SC_PHYS_PAGES")
    pressures = [
        proc / "pressure" / "memory",
        *(folder / files.pressure for folder, files in folders if files.pressure),
    ]
    return HostMemory(available_bytes(proc, groups), min([total, *limits]), max(map(_stalled, pressures)))


def available_bytes(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Return the bytes that can be allocated before the kernel kills a process; file caches count as free."""
    return max(0, min([_of_system(proc), *_of_groups(proc, groups)]))


def _of_system(proc: Path) -> int:
    kilobytes = _entries(proc / "meminfo").get("MemAvailable:")
    if kilobytes is not None:
        return kilobytes * 1024
    return _pages("SC_AVPHYS_PAGES")


def _pages(name: str) -> int:
    return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")


def _of_groups(proc: Path, groups: Path) -> Iterator[int]:
    """Yield the bytes left to each group with a limit that this process is in, from the innermost on."""
    for folder, files in _folders(proc, groups):
        bytes_left = _bytes_left(folder, files)
        if bytes_left is not None:
            yield bytes_left


def _folders(proc: Path, groups: Path) -> Iterator[tuple[Path, GroupFiles]]:
    """Yield the folder of each group that this process is in, from the innermost on."""
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, files = groups, VERSION_2
        elif "memory" in controllers.split(","):
            root, files = groups / "memory", VERSION_1
        else:
            continue
        folder = root / path.lstrip("/")
        for directory in [folder, *folder.parents]:
            yield directory, files
            if directory == root:
                break


def _bytes_left(folder: Path, files: GroupFiles) -> int | None:
    limit, usage = _number(folder / files.limit), _number(folder / files.usage)
    if limit is None or usage is None:
        return None
    return limit - usage + _entries(folder / "memory.stat").get(files.cached, 0)


def _number(file: Path) -> int | None:
    """Read a number; ``None`` if the file does not exist or says ``max``."""
    text = _text(file).strip()
    return int(text) if text.isdecimal() else None


def _stalled(file: Path) -> float:
    """Read ``avg10`` of the line ``full`` of a file of pressure stall information; 0 if there is none."""
    for line in _text(file).splitlines():
        name, *fields = line.split()
        if name == "full":
            averages = [field.removeprefix("avg10=") for field in fields if field.startswith("avg10=")]
            return float(averages[0]) if averages and averages[0].replace(".", "", 1).isdecimal() else 0.0
    return 0.0


def _entries(file: Path) -> dict[str, int]:
    """Read the lines that begin with a name and a number."""
    parts = (line.split() for line in _text(file).splitlines())
    return {part[0]: int(part[1]) for part in parts if len(part) > 1 and part[1].isdecimal()}


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
