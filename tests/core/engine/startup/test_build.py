"""What is assembled from the components that were chosen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_plug import Plugins
from sglang_plug.config import PluginOptions
from sglang_plug.engine.execution.rank_components import _kernels
from sglang_plug.testing.model import model as model_kit

SOURCE = """
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
    install("sglang-wide", SOURCE)
    component = Plugins.discover(PluginOptions(settings=settings)).get("kernels", name)
    resolved: Any = SimpleNamespace(choices={"kernels": SimpleNamespace(component=component)})
    assert _kernels(resolved).name == expected


def test_the_model_kit_makes_a_named_set_with_its_settings(install: Callable[..., Path]) -> None:
    install("sglang-wide", SOURCE)
    assert [model_kit._kernels(name).name for name in ("wide", "plain", "torch")] == ["wide 8", "plain", "torch"]
