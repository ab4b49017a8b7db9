"""What may yet be taken of the system's memory, as the system and a container's limit say."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_plug.engine.host_memory import available_bytes

MIB = 1 << 20


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def available(root: Path) -> int:
    return available_bytes(root / "proc", root / "groups")


SYSTEM = {"proc/meminfo": "MemTotal:  8192 kB\nMemFree: 1024 kB\nMemAvailable:    4096 kB\nHugePages_Total: 0\n"}
VERSION_2 = {
    **SYSTEM,
    "proc/self/cgroup": "0::/pods/mine\n",
    "groups/memory.stat": "file 5\n",
    "groups/pods/memory.max": "max\n",
    "groups/pods/memory.current": f"{9 * MIB}\n",
    "groups/pods/mine/memory.max": f"{3 * MIB}\n",
    "groups/pods/mine/memory.current": f"{2 * MIB}\n",
    "groups/pods/mine/memory.stat": f"anon 7\ninactive_file {MIB // 2}\n",
}
VERSION_1 = {
    **SYSTEM,
    "proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/docker/abc\n0::/\n",
    "groups/memory/memory.limit_in_bytes": f"{2 * MIB}",
    "groups/memory/memory.usage_in_bytes": f"{MIB}",
    "groups/memory/memory.stat": f"total_inactive_file {MIB // 4}\n",
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (SYSTEM, 4 * MIB),
        (VERSION_2, MIB + MIB // 2),
        ({**VERSION_2, "groups/pods/memory.max": f"{10 * MIB}\n"}, MIB),
        ({**VERSION_2, "groups/pods/mine/memory.max": f"{MIB}\n"}, 0),
        ({**VERSION_2, "groups/pods/mine/memory.max": "max\n"}, 4 * MIB),
        (VERSION_1, MIB + MIB // 4),
        ({**VERSION_1, "groups/memory/memory.limit_in_bytes": str((1 << 63) - 4096)}, 4 * MIB),
    ],
    ids=["no groups", "version 2", "of a parent", "more than allowed", "no limit", "version 1", "version 1, no limit"],
)
def test_the_narrowest_limit_counts(files: dict[str, str], expected: int, tmp_path: Path) -> None:
    write(tmp_path, files)
    assert available(tmp_path) == expected


def test_without_any_of_these_files_the_system_is_asked(tmp_path: Path) -> None:
    assert available(tmp_path) > MIB


def test_this_machine() -> None:
    assert available_bytes() > MIB
