"""Without time slices, an engine serves the same outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_plug import EngineConfig, PluginOptions, Request, SamplingParams
from sglang_plug.config import CacheOptions, ModelOptions, ScheduleOptions


def test_outputs_are_the_same(tiny_model: Callable[[str], Any], serve: Callable[..., Any]) -> None:
    path = tiny_model("llama-3.2-1b").path
    params = SamplingParams(max_new_tokens=8, temperature=0.0, stop_token_ids=())
    requests = [Request(id=str(number), tokens=(5 + number, 6, 7), params=params) for number in range(3)]
    served = []
    for block in ((), ("step-extension:time-slices",)):
        engine = serve(
            EngineConfig(
                model=ModelOptions(path=str(path), device="cpu", dtype="float32"),
                cache=CacheOptions(max_total_tokens=256),
                schedule=ScheduleOptions(max_running_requests=1),
                plugins=PluginOptions(block=block),
            )
        )
        served.append([output.tokens for output in engine.outputs(requests)])
    assert served[0] == served[1] and all(len(tokens) == 8 for tokens in served[0])
