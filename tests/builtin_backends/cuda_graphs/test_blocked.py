"""Without the extensions, steps are computed operation by operation, and options of graphs are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import ConfigError, EngineConfig, PluginOptions, Request, SamplingParams
from sglang_plug.config import BackendOptions, CacheOptions, ModelOptions


def config(path: Path, block: tuple[str, ...] = (), **options: Any) -> EngineConfig:
    return EngineConfig(
        model=ModelOptions(path=str(path), device="cpu", dtype="float32"),
        cache=CacheOptions(max_total_tokens=256),
        backends=BackendOptions(**options),
        plugins=PluginOptions(block=block),
    )


@pytest.mark.parametrize("block", ["cuda_graphs", "step-extension:decode-graphs"])
def test_outputs_are_the_same(tiny_model: Callable[[str], Any], serve: Callable[..., Any], block: str) -> None:
    path = tiny_model("llama-3.2-1b").path
    params = SamplingParams(max_new_tokens=8, temperature=0.0)
    outputs = [
        serve(config(path, blocked)).outputs([Request(id="1", tokens=(5, 6, 7), params=params)])[0]
        for blocked in ((), (block,))
    ]
    assert outputs[0].tokens == outputs[1].tokens and len(outputs[1].tokens) == 8


@pytest.mark.parametrize(
    ("options", "option", "extension"),
    [
        ({"cuda_graph_max_bs": 8}, "--cuda-graph-max-bs 8", "decode-graphs"),
        ({"piecewise_cuda_graph_max_tokens": 8}, "--piecewise-cuda-graph-max-tokens 8", "piecewise-graphs"),
    ],
)
def test_their_options_are_refused(
    tiny_model: Callable[[str], Any], serve: Callable[..., Any], options: dict[str, Any], option: str, extension: str
) -> None:
    refused = config(tiny_model("llama-3.2-1b").path, ("cuda_graphs",), **options)
    with pytest.raises(ConfigError, match=f"^{option}: the step extension '{extension}', which serves this option"):
        serve(refused)
