from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
from sglang_plug.system.freed_memory import LARGE, return_large_blocks

def resident():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1]) << 10

assert return_large_blocks()
bytearray(30 << 20)  # freeing it would raise the limit to its size
before = resident()
blocks = [bytes([1]) * (8 << 20) for _ in range(8)]
kept = blocks[-1]  # behind the others, so that a heap could not shrink
del blocks
assert resident() - before < 2 * (8 << 20), resident() - before
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_freed_blocks_go_back_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
