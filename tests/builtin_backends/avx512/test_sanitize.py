"""Coverage of ``make sanitize``: every function of the library. The checks themselves run there."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from sglang_plug_backends.avx512.library import Library
from tests.builtin_backends.avx512.sanitize.__main__ import DRIVER, INSTRUCTIONS, lacking


def test_every_function_is_checked() -> None:
    text = "\n".join(path.read_text() for path in DRIVER.glob("*.cpp"))
    names = [field.name for field in fields(Library) if field.init]
    assert names and [name for name in names if not re.search(rf"\b{name}\b[^;]*\(", text)] == []


def test_a_cpu_without_the_instructions_is_recognised(tmp_path: Path) -> None:
    cpu = tmp_path / "cpuinfo"
    cpu.write_text("processor : 0\nflags\t\t: fpu avx512f avx512bw\n")
    assert lacking(cpu) == [name for name in INSTRUCTIONS if name not in ("avx512f", "avx512bw")]
    assert lacking(tmp_path / "none") == list(INSTRUCTIONS)
