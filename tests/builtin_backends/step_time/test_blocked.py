"""Without the extension, the token budget is the only limit of a step, and the option is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import ConfigError, EngineConfig, PluginOptions, Request, SamplingParams
from sglang_plug.config import CacheOptions, ModelOptions, ScheduleOptions


def config(path: Path, block: tuple[str, ...] = (), **schedule: Any) -> EngineConfig:
    return EngineConfig(
        model=ModelOptions(path=str(path), device="cpu", dtype="float32"),
        cache=CacheOptions(max_total_tokens=256),
        schedule=ScheduleOptions(**schedule),
        plugins=PluginOptions(block=block),
    )


@pytest.mark.parametrize("block", ["step_time", "step-extension:step-time"])
@pytest.mark.parametrize("schedule", [{}, {"target_itl_ms": 0.0}])
def test_outputs_are_the_same(
    tiny_model: Callable[[str], Any], serve: Callable[..., Any], block: str, schedule: dict[str, Any]
) -> None:
    path = tiny_model("llama-3.2-1b").path
    request = Request(id="1", tokens=(5, 6, 7), params=SamplingParams(max_new_tokens=8, temperature=0.0))
    timed, blocked = serve(config(path, **schedule)), serve(config(path, (block,), **schedule))
    outputs = [engine.outputs([request])[0] for engine in (timed, blocked)]
    assert outputs[0].tokens == outputs[1].tokens and len(outputs[1].tokens) == 8
    assert timed.control("info")["step_time"]["target_itl"] == ("off" if schedule else "automatic")
    assert "step_time" not in blocked.control("info")


def test_the_option_is_refused(tiny_model: Callable[[str], Any], serve: Callable[..., Any]) -> None:
    refused = config(tiny_model("llama-3.2-1b").path, ("step_time",), target_itl_ms=40.0)
    message = "^--target-itl-ms 40.0: the step extension 'step-time', which serves this option, is not loaded"
    with pytest.raises(ConfigError, match=message):
        serve(refused)
