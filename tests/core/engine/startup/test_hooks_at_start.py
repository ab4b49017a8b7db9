"""Hooks of plugins are called while an engine is built, and not while it serves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import EngineConfig, PluginOptions, Request, SamplingParams
from sglang_plug.config import CacheOptions, ModelOptions

pytestmark = pytest.mark.whole_engine

PLUGIN = """
from sglang_plug import ServicePhase, StepExtension, StepExtensionSpec, hookimpl

calls = []

@hookimpl
def register_step_extensions():
    calls.append("register_step_extensions")
    yield StepExtensionSpec(name="counts-hooks", target=f"{__name__}:build")

@hookimpl
def choose_component(kind, facts):
    calls.append("choose_component")

@hookimpl
def configure(config):
    calls.append("configure")

class CountsHooks(StepExtension, ServicePhase):
    def info(self):
        return {"hook_calls": tuple(calls)}

def build(context):
    return CountsHooks()
"""


def test_no_hook_is_called_while_an_engine_serves(
    tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    plugin, model = tmp_path / "counting_plugin.py", str(tiny_model("llama-3.2-1b").path)
    plugin.write_text(PLUGIN)
    engine = serve(
        EngineConfig(
            model=ModelOptions(path=model, device="cpu"),
            cache=CacheOptions(max_total_tokens=256),
            plugins=PluginOptions(files=(str(plugin),)),
        )
    )
    at_start = engine.control("info")["hook_calls"]
    assert {"register_step_extensions", "choose_component", "configure"} == set(at_start)
    for id in ("a", "b"):
        engine.outputs([Request(id=id, tokens=(5, 6), params=SamplingParams(max_new_tokens=3))])
        engine.control("update_weights", source=model)
    assert engine.control("info")["hook_calls"] == at_start
