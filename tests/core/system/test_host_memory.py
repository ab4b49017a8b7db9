"""The available memory of the host, within the limit of a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_plug.system.host_memory import HostMemory, available_bytes, host_memory

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


PRESSURE = "some avg10=50.00 avg60=1.00 avg300=0.00 total=1\nfull avg10={} avg60=0.00 avg300=0.00 total=1\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (SYSTEM, HostMemory(4 * MIB, 8 * MIB)),
        (VERSION_2, HostMemory(MIB + MIB // 2, 3 * MIB)),
        (VERSION_1, HostMemory(MIB + MIB // 4, 2 * MIB)),
        ({**SYSTEM, "proc/pressure/memory": PRESSURE.format("1.25")}, HostMemory(4 * MIB, 8 * MIB, 1.25)),
        (
            {
                **VERSION_2,
                "proc/pressure/memory": PRESSURE.format("1.25"),
                "groups/pods/mine/memory.pressure": PRESSURE.format("37.50"),
            },
            HostMemory(MIB + MIB // 2, 3 * MIB, 37.5),
        ),
        ({**SYSTEM, "proc/pressure/memory": "full\n"}, HostMemory(4 * MIB, 8 * MIB)),
        ({**SYSTEM, "proc/pressure/memory": "full avg10=much\n"}, HostMemory(4 * MIB, 8 * MIB)),
    ],
    ids=["no groups", "version 2", "version 1", "of the system", "of the group", "no numbers", "no number"],
)
def test_all_there_is_and_how_long_processes_wait_for_it(
    files: dict[str, str], expected: HostMemory, tmp_path: Path
) -> None:
    write(tmp_path, files)
    assert host_memory(tmp_path / "proc", tmp_path / "groups") == expected


def test_this_machine() -> None:
    assert available_bytes() > MIB
    here = host_memory()
    assert MIB < here.available <= here.total and 0 <= here.stalled <= 100
