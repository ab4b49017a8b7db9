"""Without the extension, models with recurrent states are refused by name, and all others are served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sglang_plug import ConfigError, EngineConfig, PluginOptions
from sglang_plug.config import CacheOptions, ModelOptions

BLOCKED = PluginOptions(block=("recurrent_state",))


def config(path: Any, **cache: Any) -> EngineConfig:
    model, options = ModelOptions(path=str(path), device="cpu"), CacheOptions(**{"max_total_tokens": 512, **cache})
    return EngineConfig(model=model, cache=options, plugins=BLOCKED)


def test_a_model_with_states_is_refused(tiny_model: Callable[..., Any], serve: Callable[..., Any]) -> None:
    path = tiny_model("qwen3.5").path
    with pytest.raises(ConfigError, match="keeps states of sequences .* 'recurrent-state', is blocked"):
        serve(config(path))
    hidden = replace(config(path), plugins=PluginOptions(block=("step-extension:recurrent-state",)))
    with pytest.raises(ConfigError, match="'recurrent-state', is blocked"):
        serve(hidden)


def test_a_model_without_states_is_served(tiny_model: Callable[..., Any], serve: Callable[..., Any]) -> None:
    engine = serve(config(tiny_model("qwen3-0.6b").path))
    assert "states" not in engine.control("info")


def test_the_option_is_refused(tiny_model: Callable[..., Any], serve: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="--max-states 3: the step extension 'recurrent-state'.* is not loaded"):
        serve(config(tiny_model("qwen3-0.6b").path, max_states=3))
