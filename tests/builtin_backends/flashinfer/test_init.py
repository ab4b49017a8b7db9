from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch

from sglang_plug import AttentionShape, ConfigError, Facts, PluginOptions, Plugins
from sglang_plug_backends import flashinfer as plugin

SHAPE = AttentionShape(heads=32, kv_heads=8, dim=128, layers=2)
HOPPER = Facts(device="cuda", dtype="bfloat16", shape=SHAPE, platform={"capability": (9, 0)})


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Set the package names that count as installed."""
    names = {"flashinfer", "triton"}
    monkeypatch.setattr(plugin, "_installed", names.__contains__)
    monkeypatch.setattr(plugin, "_has_compiler", lambda: True)
    return names


def test_chosen_where_it_fits(installed: set[str]) -> None:
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
    installed: set[str], changed: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert Plugins.discover().choose("attention", replace(HOPPER, **changed)) == "triton"
    assert reason in caplog.text


def test_without_a_compiler(installed: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "_has_compiler", lambda: False)
    assert plugin.choose_component("attention", HOPPER) == "triton"
    installed.add("flashinfer_jit_cache")
    assert plugin.choose_component("attention", HOPPER) == "flashinfer"


def test_without_the_packages(installed: set[str]) -> None:
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
