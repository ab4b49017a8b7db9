"""The library is compiled once, and every failure of the compilation is explained."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from sglang_plug import AttentionShape, ConfigError, Facts
from sglang_plug_backends import avx512
from sglang_plug_backends.avx512 import library
from sglang_plug_backends.avx512.library import INSTRUCTIONS, Machine

FACTS = Facts(device="cpu", dtype="bfloat16", shape=AttentionShape(heads=4, kv_heads=2, dim=64, layers=1))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Simulate a machine whose CPU has all instructions, with an empty folder for compiled libraries."""
    return Machine(cpuinfo=cpuinfo(tmp_path, INSTRUCTIONS), installed=tmp_path / "installed", cache=tmp_path / "cache")


def cpuinfo(folder: Path, instructions: Sequence[str]) -> Path:
    """Write a ``/proc/cpuinfo`` of a CPU with ``instructions``, and return the file."""
    file = folder / "cpuinfo"
    file.write_text(f"processor\t: 0\nflags\t\t: fpu {' '.join(instructions)}\n")
    return file


def cached_libraries(machine: Machine) -> list[Path]:
    assert machine.cache is not None
    return list(machine.cache.rglob("*.so"))


def fake_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / "g++"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")


@pytest.fixture
def library_file(compiled: None) -> Path:
    """Return the library that the real compiler has built for other tests."""
    return library.library_path()


def test_compiled_once(
    library_file: Path,
    machine: Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    script = f'while [ "$1" != -o ]; do shift; done; cp "{library_file}" "$2"'
    fake_compiler(tmp_path / "bin", monkeypatch, script)
    with caplog.at_level(logging.INFO):
        assert library.why_not(machine) == ""
    (built,) = cached_libraries(machine)
    count = len(list(library.SOURCES.glob("*.cpp")))
    assert f"Compiling the CPU kernels: 100%|####################| {count}/{count}" in caplog.text
    assert "Compiling the CPU kernels with" in caplog.text and built.stat().st_mode & 0o022 == 0
    assert [path for path in built.parent.iterdir() if path != built] == []
    monkeypatch.setenv("PATH", "/nowhere")
    again = replace(machine, installed=tmp_path / "another")  # as in another process, without cached results
    assert library.why_not(again) == ""  # no compiler is asked for


def test_compiled_into_the_package(
    library_file: Path, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_compiler(tmp_path / "bin", monkeypatch, f'while [ "$1" != -o ]; do shift; done; cp "{library_file}" "$2"')
    command = [sys.executable, "-m", "sglang_plug_backends.avx512", "--folder", str(machine.installed)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [Path(done.stdout.strip())] == list(machine.installed.iterdir())
    monkeypatch.setenv("PATH", "/nowhere")
    assert library.why_not(machine) == "" and not cached_libraries(machine)


def test_compiling_into_the_package_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    command = [sys.executable, "-m", "sglang_plug_backends.avx512", "--folder", str(tmp_path / "package")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "no C++ compiler is installed" in done.stderr


def test_without_a_compiler(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="no C\\+\\+ compiler is installed"):
        library.load(machine)
    assert avx512.choose("kernels", FACTS, partial(library.why_not, machine)) is None


def test_the_compiler_fails(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake_compiler(tmp_path / "bin", monkeypatch, "echo 'common.h:1: error: unknown option' >&2; exit 1")
    with caplog.at_level(logging.INFO):
        assert avx512.choose("attention", FACTS, partial(library.why_not, machine)) is None
    assert "could not compile the CPU kernels: common.h:1: error: unknown option" in caplog.text
    assert not cached_libraries(machine)


def test_a_broken_library_names_its_file(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_compiler(tmp_path / "bin", monkeypatch, 'while [ "$1" != -o ]; do shift; done; echo nothing > "$2"')
    assert "do not load" in library.why_not(machine) and "remove the file to compile again" in library.why_not(machine)


def test_a_folder_that_others_write_to_is_not_used(tmp_path: Path) -> None:
    usual, shared = tmp_path / "usual", tmp_path / "shared"
    name = library.private_cache(usual).relative_to(usual)
    (shared / name).mkdir(parents=True)
    (shared / name).chmod(0o777)
    folder = library.private_cache(shared)
    assert not folder.is_relative_to(tmp_path)
    shutil.rmtree(folder)


def test_the_cpu_lacks_instructions(machine: Machine, tmp_path: Path) -> None:
    cpuinfo(tmp_path, [name for name in INSTRUCTIONS if name != "avx512_bf16"])
    assert library.why_not(machine) == "the CPU lacks avx512_bf16"
    with pytest.raises(ConfigError, match="need a CPU with avx512_bf16"):
        library.load(machine)


def test_the_system_does_not_describe_the_cpu(machine: Machine, tmp_path: Path) -> None:
    unknown = replace(machine, cpuinfo=tmp_path / "missing")
    assert library.why_not(unknown) == f"the CPU lacks a readable {tmp_path / 'missing'}"


@pytest.mark.usefixtures("compiled")
def test_chosen_for_bfloat16_on_a_cpu() -> None:
    for kind in ("attention", "kernels"):
        assert avx512.choose_component(kind, FACTS) == "avx512"
        assert avx512.choose_component(kind, Facts(device="cpu", dtype="float32", shape=FACTS.shape)) is None
        assert avx512.choose_component(kind, Facts(device="cuda", dtype="bfloat16", shape=FACTS.shape)) is None
    assert avx512.choose_component("schedule", FACTS) is None
    narrow = replace(FACTS, shape=replace(FACTS.shape, kv_dtype=torch.float8_e4m3fn))
    assert avx512.choose_component("attention", narrow) is None and avx512.choose_component("kernels", narrow)
    odd = AttentionShape(heads=4, kv_heads=2, dim=33, layers=1)
    assert avx512.choose_component("attention", Facts(device="cpu", dtype="bfloat16", shape=odd)) is None
