"""The components that each rank builds for itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import EngineConfig, Plugins
from sglang_plug.config import BackendOptions, ModelOptions, PluginOptions
from sglang_plug.engine.execution.rank_components import build_rank_components
from sglang_plug.engine.extensions.step_points import ForwardPoints
from sglang_plug.engine.loading.resolve import resolve

KERNEL_SETS = """
    from dataclasses import dataclass

    @hookimpl
    def register_kernels():
        yield KernelSpec(name="wide", target=f"{__name__}:build", settings=f"{__name__}:Width")
        yield KernelSpec(name="plain", target=f"{__name__}:build_plain")

    @dataclass(frozen=True)
    class Width:
        width: int = 8

    def build(settings):
        from sglang_plug import Kernels
        return Kernels(name=f"wide {settings.width}")

    def build_plain():
        from sglang_plug import Kernels
        return Kernels(name="plain")
"""


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("wide", {}, "wide 8"),
        ("wide", {"wide": {"width": "9"}}, "wide 9"),
        ("plain", {}, "plain"),
        ("torch", {}, "torch"),
    ],
)
def test_kernel_sets_are_made_with_their_settings(
    name: str, settings: dict[str, Any], expected: str, install: Callable[..., Path]
) -> None:
    install("sglang-wide", KERNEL_SETS)
    config = EngineConfig(
        model=ModelOptions(device="cpu"),
        backends=BackendOptions(kernels=name),
        plugins=PluginOptions(settings=settings),
    )
    resolved = resolve(config, Plugins.discover(config.plugins))
    assert build_rank_components(resolved, ForwardPoints()).kernels.name == expected
