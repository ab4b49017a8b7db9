from __future__ import annotations

import logging
import os
import sys
from dataclasses import replace
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from sglang_plug import AttentionShape, ConfigError, Facts, PluginOptions, Plugins
from sglang_plug_backends import flashinfer as plugin

SHAPE = AttentionShape(heads=32, kv_heads=8, dim=128, layers=2)
HOPPER = Facts(device="cuda", dtype="bfloat16", shape=SHAPE, platform={"capability": (9, 0)})


class Packages:
    """A set of importable packages, empty modules where they are not installed."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch = folder, monkeypatch
        folder.mkdir()
        monkeypatch.syspath_prepend(folder)

    def add(self, name: str) -> None:
        """Make a package importable."""
        if find_spec(name) is None:
            (self._folder / name).mkdir()
            (self._folder / name / "__init__.py").touch()
            invalidate_caches()

    def remove(self, name: str) -> None:
        """Make a package fail to import, by an entry without a module."""
        self._monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packages:
    """Simulate a machine with FlashInfer, Triton and a compiler."""
    packages = Packages(tmp_path / "packages", monkeypatch)
    packages.add("flashinfer")
    packages.add("triton")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch(mode=0o755)
    return packages


def test_chosen_where_it_fits(installed: Packages) -> None:
    plugins = Plugins.discover()
    assert plugins.choose("attention", HOPPER) == "flashinfer"
    assert plugins.choose("attention", Facts(device="cpu", dtype="float32", shape=SHAPE)) == "torch"
    assert plugins.choose("attention", replace(HOPPER, device="xpu")) == "torch"
    assert plugins.choose("attention", replace(HOPPER, shape=replace(SHAPE, sinks=True))) == "triton"
    narrow = replace(SHAPE, kv_dtype=torch.float8_e5m2)
    assert plugins.choose("attention", replace(HOPPER, shape=narrow)) == "flashinfer"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"dtype": "float32"}, "not in float32"),
        ({"platform": {"capability": (7, 5)}}, "compute capability is 7.5"),
        ({"shape": replace(SHAPE, dim=96)}, "not 96"),
        ({"shape": replace(SHAPE, value_dim=64)}, "128 and 64"),
        ({"shape": replace(SHAPE, kv_heads=1, dim=576, value_dim=512, values_in_keys=True)}, "not 576"),
        ({"shape": replace(SHAPE, heads=30)}, "got 30 and 8"),
        ({"shape": replace(SHAPE, kv_dtype=torch.float16)}, "fp8_e4m3 or fp8_e5m2, not in torch.float16"),
    ],
)
def test_triton_where_it_does_not(
    installed: Packages, changed: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert Plugins.discover().choose("attention", replace(HOPPER, **changed)) == "triton"
    assert reason in caplog.text


def test_without_a_compiler(installed: Packages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "empty"
    monkeypatch.setenv("PATH", str(empty))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    assert "there is no CUDA compiler" in plugin.why_not(HOPPER, cuda_home=empty)
    installed.add("flashinfer_jit_cache")
    assert plugin.why_not(HOPPER, cuda_home=empty) == ""


def test_without_the_packages(installed: Packages) -> None:
    installed.remove("flashinfer")
    assert plugin.choose_component("attention", HOPPER) == "triton"
    installed.remove("triton")
    assert Plugins.discover().choose("attention", HOPPER) == "torch"


def test_settings_are_checked() -> None:
    for key, value, reason in (
        ("workspace_mib", "0", "at least 1"),
        ("prefill", "fa9", "fa9"),
        ("tensor_cores_from", "5", "1 to 4"),
    ):
        plugins = Plugins.discover(PluginOptions(settings={"flashinfer": {key: value}}))
        with pytest.raises(ConfigError, match=reason):
            plugins.get("attention", "flashinfer").settings()
