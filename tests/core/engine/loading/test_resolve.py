"""The choice of the model class for a checkpoint, and its tasks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from sglang_plug import Checkpoint, ConfigError, Facts, ModelSpec, PluginError, PluginOptions, Plugins
from sglang_plug.contracts.request import Task
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
    """The built-in models, and a plugin's generic model that can stand in for any architecture."""
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
