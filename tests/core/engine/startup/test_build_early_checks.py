"""Errors in a component are raised before the weights are read, and name the component."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import ConfigError, EngineConfig
from sglang_plug.config import (
    AdapterOptions,
    BackendOptions,
    CacheOptions,
    ModelOptions,
    PluginOptions,
    ScheduleOptions,
    SpeculativeOptions,
)

PLUGIN = """
    from __future__ import annotations

    from pathlib import Path

    import torch

    from sglang_plug import AttentionBackend, AttentionSpec, hookimpl
    from sglang_plug.plugins.specs import (DrafterSpec, EvictionSpec, PrefixCacheSpec, ScheduleSpec, WeightsSpec)

    @hookimpl
    def register_weight_loaders():
        yield WeightsSpec(name="recorded", target=f"{__name__}:read_weights")

    @hookimpl
    def register_schedule_policies():
        yield ScheduleSpec(name="mine", target=f"{__name__}:Unmade")

    @hookimpl
    def register_cache_policies():
        yield EvictionSpec(name="mine", target=f"{__name__}:Empty")
        yield PrefixCacheSpec(name="mine", target=f"{__name__}:Empty")

    @hookimpl
    def register_drafters():
        yield DrafterSpec(name="mine", target=f"{__name__}:Unmade")

    @hookimpl
    def register_attention_backends():
        for name in ("flat", "double", "nothing", "failing"):
            yield AttentionSpec(name=name, target=f"{__name__}:{name.capitalize()}")

    def read_weights(checkpoint, model):
        Path(__file__).with_suffix(".read").touch()
        raise OSError("the weights are read")

    class Unmade:
        def __init__(self):
            raise ValueError("no such thing")

    class Empty:
        pass

    class Backend(AttentionBackend):
        def plan(self, batch):
            pass

        def run(self, layer, q, k, v, batch):
            return self.answer(q)

    class Flat(Backend):
        def answer(self, q):
            return q.flatten(1)

    class Double(Backend):
        def answer(self, q):
            return q.double()

    class Nothing(Backend):
        def answer(self, q):
            return None

    class Failing(Backend):
        def answer(self, q):
            raise OSError("no driver")
"""


@pytest.fixture
def refusal(tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path) -> Callable[..., str]:
    """Return a function that starts an engine, expects a ``ConfigError`` before the weights are read, and returns its
    text."""

    def start(**options: Any) -> str:
        file = tmp_path / "broken.py"
        file.write_text(textwrap.dedent(PLUGIN))
        model = ModelOptions(path=str(tiny_model("llama-3.2-1b").path), device="cpu", load_format="recorded")
        cache = options.pop("cache", CacheOptions(max_total_tokens=256))
        with pytest.raises(ConfigError) as error:
            serve(EngineConfig(model=model, cache=cache, plugins=PluginOptions(files=(str(file),)), **options))
        assert not file.with_suffix(".read").exists(), error.value
        return str(error.value)

    return start


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": ScheduleOptions(policy="mine")}, "schedule 'mine' from"),
        ({"cache": CacheOptions(eviction_policy="mine")}, "eviction 'mine' from"),
        ({"cache": CacheOptions(prefix_cache="mine")}, "prefix-cache 'mine' from"),
        ({"cache": CacheOptions(page_size=0)}, "--page-size must be at least 1"),
        ({"cache": CacheOptions(max_total_tokens=1)}, "--max-total-tokens must be at least 2"),
        ({"speculative": SpeculativeOptions(algorithm="mine")}, "drafter 'mine' from"),
    ],
)
def test_a_component_that_cannot_be_made(options: dict[str, Any], message: str, refusal: Callable[..., str]) -> None:
    error = refusal(**options)
    assert message in error
    if "from" in message:
        assert "(plugin 'broken')" in error


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("flat", "run() must give a tensor of shape [tokens, heads, value_dim], here [1, 8, 16]; it returned [1, 128]"),
        ("double", "run() must give a tensor of the dtype of its queries, torch.float32; it returned torch.float64"),
        ("nothing", "run() must give a tensor; it returned NoneType"),
        ("failing", "failed to attend over one token: OSError: no driver"),
    ],
)
def test_an_attention_backend_that_gives_something_else(name: str, message: str, refusal: Callable[..., str]) -> None:
    error = refusal(backends=BackendOptions(attention=name))
    assert f"attention {name!r} from" in error and "(plugin 'broken')" in error
    assert message in error


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "is not a folder"),
        ({}, "holds no adapter of a known format"),
        ({"peft_type": "LORA", "r": 4, "target_modules": ["no_such_proj"]}, "adapter_model.safetensors"),
    ],
)
def test_an_adapter_that_does_not_fit(config: Any, message: str, refusal: Callable[..., str], tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    if config is not None:
        folder.mkdir()
    if config:
        (folder / "adapter_config.json").write_text(json.dumps(config))
    error = refusal(adapters=AdapterOptions(paths=(f"a={folder}",)))
    assert error.startswith(f"--lora-paths a={folder}: adapter 'a' was not loaded: ")
    assert message in error
