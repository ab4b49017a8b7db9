"""Which drafter is chosen, and how it is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_plug import ConfigError, EngineConfig, Facts, PluginError, PluginOptions, Plugins
from sglang_plug.config import CacheOptions, ScheduleOptions, SpeculativeOptions
from sglang_plug.engine.drafters import build_speculation, choose_drafter, sampled_rows
from sglang_plug.engine.resolve import Resolved, resolve

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


def chosen(algorithm: str, plugins: Plugins, *, generates: bool = True) -> str | None:
    found = choose_drafter(config(algorithm), plugins, Facts(), generates=generates)
    return None if found is None else found[0].spec.name


def test_names_may_be_in_capitals(plugins: Plugins) -> None:
    assert chosen("ngram", plugins) == chosen("NGRAM", plugins) == "ngram"
    assert chosen("Capital", plugins) == "Capital"


def test_by_default_nothing_is_drafted(plugins: Plugins) -> None:
    assert EngineConfig().speculative.algorithm == "none"
    assert chosen("none", plugins) is chosen("NONE", plugins) is chosen("none", plugins, generates=False) is None


def test_left_open_plugins_are_asked(plugins: Plugins) -> None:
    assert chosen("auto", plugins) == "Capital"
    assert chosen("auto", plugins, generates=False) is None
    assert chosen("auto", Plugins.discover()) is None


def test_what_nobody_declares_is_refused(plugins: Plugins) -> None:
    with pytest.raises(PluginError, match="no drafter named 'eagle'"):
        chosen("EAGLE", plugins)


def test_a_model_that_generates_nothing_is_refused(plugins: Plugins) -> None:
    with pytest.raises(ConfigError, match="--speculative-algorithm ngram: there is nothing to guess"):
        chosen("ngram", plugins, generates=False)


def resolved(algorithm: str, plugins: Plugins, **options: int) -> Resolved:
    return resolve(config(algorithm, **options), plugins)


def test_the_options_are_the_speculations(plugins: Plugins) -> None:
    found = build_speculation(resolved("Capital", plugins, num_draft_tokens=3, step_tokens=9))
    assert found is not None and (found.most, found.step_tokens) == (3, 9)
    found = build_speculation(resolved("ngram", plugins))
    assert found is not None and (found.most, found.step_tokens) == (8, 16)
    assert build_speculation(resolved("none", plugins)) is None


def test_memory_is_kept_for_the_tokens_that_are_sampled_with_drafts(plugins: Plugins) -> None:
    assert sampled_rows(resolved("none", plugins)) == 4
    assert sampled_rows(resolved("ngram", plugins)) == 16
    assert sampled_rows(resolved("ngram", plugins, step_tokens=3)) == 4


def test_what_is_no_drafter_is_named(plugins: Plugins) -> None:
    with pytest.raises(PluginError, match="drafter 'broken' .* gave str instead of Drafter"):
        build_speculation(resolved("broken", plugins))
