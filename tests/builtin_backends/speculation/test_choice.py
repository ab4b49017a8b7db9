"""The choice of a drafter, and its construction."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sglang_plug import (
    ConfigError,
    EngineConfig,
    ExtensionContext,
    Facts,
    PluginError,
    PluginOptions,
    Plugins,
    StateShape,
)
from sglang_plug.config import CacheOptions, ScheduleOptions, SpeculativeOptions
from sglang_plug.contracts.serving.executor import SINGLE_RANK
from sglang_plug.engine.extensions.build import BuiltExtensions, RankLink, build_extensions, send_nothing
from sglang_plug.engine.loading.resolve import resolve
from sglang_plug.plugins.attribution import make_with_settings
from sglang_plug_backends.speculation.choice import build, choose_drafter

CPU = torch.device("cpu")
DRAFTERS = """
from __future__ import annotations

from sglang_plug import Drafter, DrafterSpec, SequenceDrafter, hookimpl


@hookimpl
def register_drafters():
    yield DrafterSpec(name="Capital", target=f"{__name__}:Own")
    yield DrafterSpec(name="broken", target=f"{__name__}:broken")


@hookimpl
def choose_component(kind):
    return "Capital" if kind == "drafter" else None


class Own(Drafter):
    def begin(self, prompt, *, salt):
        raise NotImplementedError


def broken():
    return "no drafter"
"""


@pytest.fixture
def plugins(tmp_path: Path) -> Plugins:
    (tmp_path / "drafters.py").write_text(DRAFTERS)
    return Plugins.discover(PluginOptions(files=(str(tmp_path / "drafters.py"),), strict=True))


def config(algorithm: str, **options: int) -> EngineConfig:
    return EngineConfig(
        cache=CacheOptions(max_total_tokens=64),
        schedule=ScheduleOptions(max_running_requests=4),
        speculative=SpeculativeOptions(algorithm=algorithm, **options),
    )


def built(algorithm: str, plugins: Plugins, **options: int) -> BuiltExtensions:
    return build_extensions(resolve(config(algorithm, **options), plugins), plugins)


def refuse(*arguments: Any) -> Any:
    """Raise an error, because drafters must not call this function."""
    raise NotImplementedError


def context(algorithm: str, plugins: Plugins, **known: Any) -> ExtensionContext:
    facts: dict[str, Any] = {"tasks": ("generate",), "vocab_size": 9, "settings": None, **known}
    facts = {
        "choose": refuse,
        "vocabulary": refuse,
        "max_running": 4,
        "chunk_size": 64,
        "states": (),
        **facts,
    }
    return ExtensionContext(
        config=config(algorithm),
        plugins=plugins,
        facts=Facts(),
        device=CPU,
        dtype=torch.float32,
        model=plugins.get("model", "LlamaForCausalLM"),
        ranks=RankLink("speculation", SINGLE_RANK, CPU, send_nothing),
        request_fields=lambda request: None,
        make=lambda component, reason, contract: make_with_settings(component, contract=contract),
        describe=lambda error, component: repr(error),
        **facts,
    )


def chosen(algorithm: str, plugins: Plugins, **known: Any) -> str | None:
    choice = choose_drafter(context(algorithm, plugins, **known))
    return None if choice is None else choice[0].spec.name


def test_names_may_be_in_capitals(plugins: Plugins) -> None:
    assert chosen("ngram", plugins) == chosen("NGRAM", plugins) == "ngram"
    assert chosen("Capital", plugins) == "Capital"


def test_by_default_nothing_is_drafted(plugins: Plugins) -> None:
    assert EngineConfig().speculative.algorithm == "none"
    assert chosen("none", plugins) is chosen("NONE", plugins) is chosen("none", plugins, tasks=("embed",)) is None


def test_left_open_plugins_are_asked(plugins: Plugins) -> None:
    assert chosen("auto", plugins) == "Capital"
    assert chosen("auto", plugins, tasks=("embed",)) is None
    assert chosen("auto", Plugins.discover()) is None


def test_what_nobody_declares_is_refused(plugins: Plugins) -> None:
    with pytest.raises(PluginError, match="no drafter named 'eagle'"):
        chosen("EAGLE", plugins)


def test_a_model_that_generates_nothing_is_refused(plugins: Plugins) -> None:
    with pytest.raises(ConfigError, match="--speculative-algorithm ngram: there is nothing to guess"):
        chosen("ngram", plugins, tasks=("embed",))


def test_a_model_whose_state_cannot_be_reset_is_refused(plugins: Plugins) -> None:
    with pytest.raises(ConfigError, match="--speculative-algorithm ngram: the model's recurrent states"):
        chosen("ngram", plugins, states=(StateShape(shape=(1,)),))
    assert chosen("auto", plugins, states=(StateShape(shape=(1,)),)) is None


def test_the_options_reach_the_extension(plugins: Plugins) -> None:
    extension = build(replace(context("ngram", plugins), config=config("ngram", num_draft_tokens=3, step_tokens=9)))
    assert extension is not None and (extension.max_draft_tokens, extension.step_tokens) == (3, 9)
    extension = build(context("ngram", plugins))
    assert extension is not None and (extension.max_draft_tokens, extension.step_tokens) == (8, 16)
    assert build(context("none", plugins)) is None


def test_the_drafter_is_among_the_chosen_components(plugins: Plugins) -> None:
    choices = built("ngram", plugins).resolved.choices
    assert choices["drafter"].describe()["name"] == "ngram"
    assert "drafter" not in built("none", plugins).resolved.choices


def test_memory_is_reserved_for_the_tokens_that_are_sampled_with_drafts(plugins: Plugins) -> None:
    assert built("none", plugins).points.start.max_draft_rows == 0
    assert built("ngram", plugins).points.start.max_draft_rows == 16
    assert built("ngram", plugins, step_tokens=3).points.start.max_draft_rows == 3


def test_an_object_that_is_no_drafter_is_named(plugins: Plugins) -> None:
    with pytest.raises(PluginError, match="drafter 'broken' .* returned str instead of Drafter"):
        built("broken", plugins)


def test_a_server_without_the_extension_refuses_the_option_by_name() -> None:
    blocked = Plugins.discover(PluginOptions(block=("speculation",)))
    with pytest.raises(
        ConfigError, match="--speculative-algorithm ngram: the step extension 'speculation', which serves this"
    ):
        built("ngram", blocked)
    assert built("none", blocked).points.planning.plan == ()
