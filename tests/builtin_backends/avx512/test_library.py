"""Compilation of the library: once, and with an explanation for every failure."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sglang_plug import AttentionShape, ConfigError, Facts
from sglang_plug_backends import avx512
from sglang_plug_backends.avx512 import library

FACTS = Facts(device="cpu", dtype="bfloat16", shape=AttentionShape(heads=4, kv_heads=2, dim=64, layers=1))


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Provide an empty cache folder and no cached state."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    remembered = (library.load, library.why_not, library._cache_folder)
    for function in remembered:
        function.cache_clear()
    yield tmp_path / "sglang-plug"
    for function in remembered:
        function.cache_clear()


@pytest.fixture
def capable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a CPU with all instructions."""
    monkeypatch.setattr(library, "_missing_instructions", list)


def fake_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / "g++"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")


@pytest.fixture
def library_file(compiled: None) -> Path:
    """The library that the real compiler made for this session's other tests."""
    return library._compiled()


def test_compiled_once(
    library_file: Path, fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    script = f'while [ "$1" != -o ]; do shift; done; cp "{library_file}" "$2"'
    fake_compiler(tmp_path / "bin", monkeypatch, script)
    with caplog.at_level(logging.INFO):
        assert library.why_not() == ""
    (built,) = fresh.rglob("*.so")
    count = len(list(library.SOURCES.glob("*.cpp")))
    assert f"Compiling the CPU kernels: 100%|####################| {count}/{count}" in caplog.text
    assert "Compiling the CPU kernels with" in caplog.text and built.stat().st_mode & 0o022 == 0
    assert [path for path in built.parent.iterdir() if path != built] == []
    for function in (library.load, library.why_not):
        function.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    assert library.why_not() == ""  # no compiler is asked for


@pytest.mark.usefixtures("capable")
def test_compiled_into_the_package(
    library_file: Path, fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "package"
    fake_compiler(tmp_path / "bin", monkeypatch, f'while [ "$1" != -o ]; do shift; done; cp "{library_file}" "$2"')
    command = [sys.executable, "-m", "sglang_plug_backends.avx512", "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [Path(done.stdout.strip())] == list(folder.iterdir())
    monkeypatch.setattr(library, "COMPILED", folder)
    monkeypatch.setenv("PATH", "/nowhere")
    assert library.why_not() == "" and not list(fresh.rglob("*.so"))


def test_compiling_into_the_package_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    command = [sys.executable, "-m", "sglang_plug_backends.avx512", "--folder", str(tmp_path / "package")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "no C++ compiler is installed" in done.stderr


def test_without_a_compiler(fresh: Path, capable: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="no C\\+\\+ compiler is installed"):
        library.load()
    assert avx512.choose_component("kernels", FACTS) is None


def test_the_compiler_fails(
    fresh: Path, capable: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake_compiler(tmp_path / "bin", monkeypatch, "echo 'common.h:1: error: unknown option' >&2; exit 1")
    with caplog.at_level(logging.INFO):
        assert avx512.choose_component("attention", FACTS) is None
    assert "could not compile the CPU kernels: common.h:1: error: unknown option" in caplog.text
    assert not list(fresh.rglob("*.so"))


def test_a_broken_library_names_its_file(
    fresh: Path, capable: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_compiler(tmp_path / "bin", monkeypatch, 'while [ "$1" != -o ]; do shift; done; echo nothing > "$2"')
    assert "do not load" in library.why_not() and "remove the file to compile anew" in library.why_not()


def test_a_folder_that_others_write_to_is_not_used(
    fresh: Path, capable: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_compiler(tmp_path / "bin", monkeypatch, 'while [ "$1" != -o ]; do shift; done; echo nothing > "$2"')
    library._cache_folder().chmod(0o777)
    library._cache_folder.cache_clear()
    assert not library._cache_folder().is_relative_to(fresh)
    shutil.rmtree(library._cache_folder())


def test_the_cpu_lacks_instructions(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_missing_instructions", lambda: ["avx512_bf16"])
    assert library.why_not() == "the CPU lacks avx512_bf16"
    with pytest.raises(ConfigError, match="need a CPU with avx512_bf16"):
        library.load()


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
