"""Without time slices, an engine serves the same outputs; without deadlines, it refuses requests that have one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sglang_plug import ConfigError, EngineConfig, PluginOptions, Request, RequestError, SamplingParams
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


def test_deadlines_are_refused_by_name(tiny_model: Callable[[str], Any], serve: Callable[..., Any]) -> None:
    engine = serve(
        EngineConfig(
            model=ModelOptions(path=str(tiny_model("llama-3.2-1b").path), device="cpu"),
            plugins=PluginOptions(block=("step-extension:deadlines",)),
        )
    )
    params = SamplingParams(max_new_tokens=2, stop_token_ids=())
    plain = Request(id="plain", tokens=(5, 6), params=params)
    served, refused = engine.outcomes([plain, replace(plain, id="late", deadline=1.0)])
    assert served.finish.reason == "length"
    assert isinstance(refused, RequestError) and refused.status == 400
    assert "deadline: no step extension that serves this field" in str(refused)
    assert "'deadlines' serves it" in str(refused)


def test_limits_of_callers_are_refused_by_name(tiny_model: Callable[[str], Any], serve: Callable[..., Any]) -> None:
    config = EngineConfig(
        model=ModelOptions(path=str(tiny_model("llama-3.2-1b").path), device="cpu"),
        schedule=ScheduleOptions(max_running_per_caller=2),
        plugins=PluginOptions(block=("step-extension:caller-limits",)),
    )
    with pytest.raises(ConfigError, match="^--max-running-per-caller 2: the step extension 'caller-limits', which"):
        serve(config)
