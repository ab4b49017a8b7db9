"""Without the extension, steps are computed operation by operation, with the same outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sglang_plug import EngineConfig, PluginOptions, Request, SamplingParams
from sglang_plug.config import CacheOptions, ModelOptions

pytestmark = pytest.mark.usefixtures("compiled")


@pytest.mark.parametrize("block", ["recorded_steps", "step-extension:recorded-steps"])
def test_outputs_are_the_same(tiny_model: Callable[[str], Any], serve: Callable[..., Any], block: str) -> None:
    path = tiny_model("llama-3.2-1b").path
    requests = [
        Request(id=f"{row}", tokens=tuple(range(5, 40 + row)), params=SamplingParams(max_new_tokens=8, temperature=0.0))
        for row in range(3)
    ]
    outputs = []
    for blocked in ((), (block,)):
        config = EngineConfig(
            model=ModelOptions(path=str(path), device="cpu", dtype="bfloat16"),
            cache=CacheOptions(max_total_tokens=256),
            plugins=PluginOptions(block=blocked),
        )
        outputs.append([output.tokens for output in serve(config).outputs(requests)])
    assert outputs[0] == outputs[1] and all(len(tokens) == 8 for tokens in outputs[1])
