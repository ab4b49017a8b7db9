"""Every hook that declares components fills the registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sglang_plug import PluginOptions, Plugins
from sglang_plug.plugins.declaration import hook_names

Install = Callable[..., Path]


@dataclass(frozen=True)
class Declared:
    hook: str
    spec: str
    kind: str


DECLARING = [
    Declared("register_models", "ModelSpec", "model"),
    Declared("register_attention_backends", "AttentionSpec", "attention"),
    Declared("register_kernels", "KernelSpec", "kernels"),
    Declared("register_quantizations", "QuantizationSpec", "quantization"),
    Declared("register_cache_policies", "PrefixCacheSpec", "prefix-cache"),
    Declared("register_cache_policies", "EvictionSpec", "eviction"),
    Declared("register_kv_stores", "KVStoreSpec", "kv-store"),
    Declared("register_schedule_policies", "ScheduleSpec", "schedule"),
    Declared("register_executors", "ExecutorSpec", "executor"),
    Declared("register_deployments", "DeploymentSpec", "deployment"),
    Declared("register_stores", "StoreSpec", "store"),
    Declared("register_routing_policies", "RoutingSpec", "routing"),
    Declared("register_adapters", "AdapterSpec", "adapter"),
    Declared("register_drafters", "DrafterSpec", "drafter"),
    Declared("register_step_extensions", "StepExtensionSpec", "step-extension"),
    Declared("register_logits_processors", "LogitsProcessorSpec", "logits-processor"),
    Declared("register_weight_loaders", "CheckpointSpec", "checkpoint"),
    Declared("register_weight_loaders", "WeightsSpec", "weights"),
    Declared("register_tokenizers", "TokenizerSpec", "tokenizer"),
    Declared("register_media_processors", "MediaProcessorSpec", "media-processor"),
    Declared("register_grammar_backends", "GrammarSpec", "grammar"),
    Declared("register_output_parsers", "ToolParserSpec", "tool-parser"),
    Declared("register_output_parsers", "ReasoningParserSpec", "reasoning-parser"),
    Declared("register_routes", "RouteSpec", "route"),
    Declared("register_commands", "CommandSpec", "command"),
    Declared("register_observers", "ObserverSpec", "observer"),
]


@pytest.mark.parametrize("declared", DECLARING, ids=lambda declared: declared.spec)
def test_every_declaring_hook_feeds_the_registry(install: Install, declared: Declared) -> None:
    source = f"""
        @hookimpl
        def {declared.hook}():
            yield {declared.spec}(name="from-outside", target=f"{{__name__}}:Thing", summary="a thing")
        class Thing: ...
    """
    install("sglang-outside", source)
    plugins = Plugins.discover(PluginOptions())
    assert declared.kind in plugins.kinds()
    assert "from-outside" in plugins.names(declared.kind)
    component = plugins.get(declared.kind, "from-outside")
    assert component.load().__name__ == "Thing"
    assert component in plugins.all() and component in plugins.all(declared.kind)


def test_every_hook_is_covered_above() -> None:
    assert {declared.hook for declared in DECLARING} | {"choose_component", "configure"} == set(hook_names())
