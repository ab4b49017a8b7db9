"""Which model class serves a checkpoint, for which tasks, on which device."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_plug import Checkpoint, ConfigError, Facts, ModelSpec, PluginError, PluginOptions, Plugins
from sglang_plug.contracts.request import Task
from sglang_plug.engine.loading.device import choose_device, choose_dtype
from sglang_plug.engine.loading.resolve import _tasks as served_tasks
from sglang_plug.engine.loading.resolve import choose_model
from sglang_plug.plugins.installed.discovery import DiscoveredPlugin
from sglang_plug.plugins.registry import Component

GENERIC = """
from __future__ import annotations

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models():
    yield ModelSpec(name="anything", target="anything:Model", generic=True)


@hookimpl
def choose_component(kind, facts):
    return "anything" if kind == "model" and facts.model.willing else None
"""


@pytest.fixture
def plugins(tmp_path: Path) -> Plugins:
    """The built-in models, and one of a stranger that serves anything instead of ours."""
    (tmp_path / "anything.py").write_text(GENERIC)
    return Plugins.discover(
        PluginOptions(files=(str(tmp_path / "anything.py"),), block=("transformers_fallback",), strict=True)
    )


def checkpoint(architecture: str, willing: bool = True) -> Checkpoint:
    config = SimpleNamespace(architectures=[architecture], willing=willing)
    return Checkpoint(source="x", path=Path("x"), config=config)


def chosen(impl: str, architecture: str, plugins: Plugins, willing: bool = True) -> tuple[str, str]:
    choice = choose_model(impl, checkpoint(architecture, willing), plugins, Facts())
    return choice.component.spec.name, choice.reason


def test_a_plugin_for_the_architecture_comes_first(plugins: Plugins) -> None:
    for impl in ("auto", "native"):
        assert chosen(impl, "LlamaForCausalLM", plugins) == ("LlamaForCausalLM", "named by the checkpoint")


def test_otherwise_plugins_are_asked_with_the_checkpoints_configuration(plugins: Plugins) -> None:
    assert chosen("auto", "StrangeForCausalLM", plugins) == ("anything", "no plugin declares StrangeForCausalLM")


def test_a_generic_model_can_be_named(plugins: Plugins) -> None:
    assert chosen("anything", "LlamaForCausalLM", plugins) == ("anything", "named by the configuration")


@pytest.mark.parametrize(
    ("impl", "architecture", "willing"),
    [("native", "LlamaForCasualLM", True), ("auto", "LlamaForCasualLM", False)],
)
def test_what_nobody_serves_gets_one_line_that_helps(
    impl: str, architecture: str, willing: bool, plugins: Plugins
) -> None:
    with pytest.raises(ConfigError, match="no model named 'LlamaForCasualLM'.*LlamaForCausalLM") as caught:
        chosen(impl, architecture, plugins, willing)
    assert "; --model-impl anything may serve it" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("impl", ["LlamaForCausalLM", "trasnformers"])
def test_only_generic_models_can_be_named(impl: str, plugins: Plugins) -> None:
    with pytest.raises(ConfigError, match=f"--model-impl '{impl}' is unknown; known: auto, native, anything$"):
        chosen(impl, "LlamaForCausalLM", plugins)


def test_a_generic_model_is_not_an_architecture(plugins: Plugins) -> None:
    with pytest.raises(ConfigError, match="no model named 'anything'"):
        chosen("native", "anything", plugins)


def test_plugins_that_failed_are_mentioned(tmp_path: Path) -> None:
    (tmp_path / "torn.py").write_text("raise RuntimeError('torn apart')")
    plugins = Plugins.discover(PluginOptions(files=(str(tmp_path / "torn.py"),)))
    with pytest.raises(ConfigError, match="no model named 'TornModel'.*\n.*torn apart"):
        chosen("auto", "TornModel", plugins)


def test_two_plugins_of_one_architecture_still_clash(tmp_path: Path) -> None:
    (tmp_path / "second.py").write_text(
        GENERIC.replace('"anything"', '"LlamaForCausalLM"', 1).replace(", generic=True", "")
    )
    plugins = Plugins.discover(PluginOptions(files=(str(tmp_path / "second.py"),)))
    with pytest.raises(PluginError, match="clash; add --prefer model:LlamaForCausalLM"):
        chosen("auto", "LlamaForCausalLM", plugins)


@pytest.mark.parametrize(
    ("name", "devices", "message"),
    [
        ("cuda", 0, "--device cuda: torch sees no CUDA device here"),
        ("cuda:7", 0, "--device cuda:7: torch sees no CUDA device here"),
        ("cuda:2", 2, "--device cuda:2: torch sees 2 CUDA devices here; the last is cuda:1"),
        ("abacus", 0, "--device 'abacus' is not a device that torch knows"),
        ("meta", 0, "--device meta: torch cannot compute there"),
        ("xpu", 0, "--device xpu: torch cannot compute there"),
    ],
)
def test_devices_that_are_not_there(name: str, devices: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_device(name, cuda_devices=devices)


def test_devices_that_are_there() -> None:
    names = ("cpu", "cuda", "cuda:0", "cuda:1")
    assert [choose_device(name, cuda_devices=2).type for name in names] == ["cpu", *["cuda"] * 3]


def test_each_replica_has_devices_of_its_own() -> None:
    names = ("cpu", "auto", "cuda", "cuda:1")
    assert [str(choose_device(name, 2, cuda_devices=4)) for name in names] == [
        "cpu",
        *["cuda:2"] * 2,
        "cuda:3",
    ]
    with pytest.raises(ConfigError, match="--device cuda with this many --replicas needs cuda:4: torch sees 4"):
        choose_device("cuda", 4, cuda_devices=4)


@pytest.mark.parametrize(
    ("declared", "task", "served"),
    [
        ({"generate"}, "auto", ("generate",)),
        ({"generate"}, "embed", ("embed",)),
        ({"classify", "rerank"}, "auto", ("classify", "rerank")),
        ({"classify", "rerank"}, "rerank", ("classify", "rerank")),
        ({"classify", "rerank"}, "embed", ("classify", "rerank")),
    ],
)
def test_tasks_that_a_model_can_do(declared: set[Task], task: str, served: tuple[str, ...]) -> None:
    assert served_tasks(task, declares(declared)) == served


@pytest.mark.parametrize(
    ("declared", "task", "can"),
    [
        ({"generate"}, "classify", "embed, generate"),
        ({"generate"}, "rerank", "embed, generate"),
        ({"embed"}, "generate", "embed"),
        ({"classify"}, "rerank", "classify"),
    ],
)
def test_tasks_that_a_model_cannot_do(declared: set[Task], task: str, can: str) -> None:
    with pytest.raises(ConfigError, match=f"--task {task}: .* does not support it; its tasks: {can}$"):
        served_tasks(task, declares(declared))


def declares(tasks: set[Task]) -> Component:
    origin = DiscoveredPlugin("mine", "mine", "1", "mine")
    return Component(ModelSpec(name="Mine", target="mine:Mine", tasks=frozenset(tasks)), origin, {})


@pytest.mark.parametrize(
    ("whole", "decoder", "device", "expected"),
    [
        ({"dtype": torch.bfloat16}, {}, "cuda", torch.bfloat16),
        ({"dtype": None}, {"dtype": torch.bfloat16}, "cuda", torch.bfloat16),
        ({}, {"torch_dtype": "float16"}, "cuda", torch.float16),
        ({"dtype": "bfloat16"}, {"dtype": "float32"}, "cpu", torch.bfloat16),
        ({}, {"dtype": torch.float16}, "cpu", torch.float32),
        ({"dtype": "float16", "quantization_config": {"quant_method": "awq"}}, {}, "cpu", torch.bfloat16),
        ({"dtype": "float16", "quantization_config": {"quant_method": "awq"}}, {}, "cuda", torch.float16),
        ({}, {}, "cuda", torch.float32),
    ],
)
def test_the_dtype_is_that_of_the_whole_or_of_the_decoder(
    whole: dict[str, Any], decoder: dict[str, Any], device: str, expected: torch.dtype
) -> None:
    configs = SimpleNamespace(**whole), SimpleNamespace(**decoder)
    assert choose_dtype("auto", *configs, torch.device(device)) == expected
    assert choose_dtype("float32", *configs, torch.device(device)) == torch.float32
