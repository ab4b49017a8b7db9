"""The choice of a checkpoint's reader and weight loader."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import sglang_plug_models.demo
from sglang_plug import Checkpoint, ConfigError, EngineConfig, Facts, Plugins
from sglang_plug.config import ModelOptions
from sglang_plug.engine.loading.checkpoint_formats import (
    config_fields,
    model_source,
    open_checkpoint,
    tokenizer_source,
)

DEMO = Path(sglang_plug_models.demo.__file__).parent / "sglang-plug-demo"
CONFIG = EngineConfig(model=ModelOptions(path=str(DEMO)))


def test_a_checkpoint_is_opened_by_who_recognises_it(installed_plugins: Plugins) -> None:
    checkpoint, reader, loader = open_checkpoint(CONFIG, installed_plugins, Facts())
    assert checkpoint.path == DEMO and checkpoint.architecture
    for choice, kind in ((reader, "checkpoint"), (loader, "weights")):
        assert choice.component.spec.kind == kind
        description = choice.describe()
        assert description["name"] == choice.component.spec.name and description["reason"] == choice.reason


def test_a_reader_that_is_named_is_taken(installed_plugins: Plugins) -> None:
    named = replace(CONFIG, model=replace(CONFIG.model, load_format="dummy"))
    _, _, loader = open_checkpoint(named, installed_plugins, Facts())
    assert (loader.component.spec.name, loader.reason) == ("dummy", "named by the configuration")


def test_an_unknown_loader_is_refused_before_the_source_is_read(installed_plugins: Plugins) -> None:
    model = ModelOptions(path="/no/such-model", load_format="no-such-format")
    with pytest.raises(ConfigError, match="no-such-format"):
        open_checkpoint(EngineConfig(model=model), installed_plugins, Facts())


def test_a_source_that_nobody_recognises_names_who_was_asked(installed_plugins: Plugins, tmp_path: Path) -> None:
    config = EngineConfig(model=ModelOptions(path=str(tmp_path)))
    with pytest.raises(ConfigError, match=r"no checkpoint component recognises it; tried: .*--checkpoint-format"):
        open_checkpoint(config, installed_plugins, Facts())


def test_a_configuration_without_an_architecture_is_refused(installed_plugins: Plugins, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    config = EngineConfig(model=ModelOptions(path=str(tmp_path), load_format="dummy"))
    with pytest.raises(ConfigError, match="config.json names no architecture"):
        open_checkpoint(config, installed_plugins, Facts())


def test_a_model_that_is_named_comes_before_the_one_of_plugins(installed_plugins: Plugins) -> None:
    assert model_source(CONFIG, installed_plugins) == str(DEMO)
    assert Path(model_source(EngineConfig(), installed_plugins)) == DEMO


def test_a_tokenizer_of_its_own_comes_before_the_checkpoint_s() -> None:
    checkpoint = Checkpoint(source="x", path=Path("x"), config=None)
    assert tokenizer_source(CONFIG, checkpoint).path == Path("x")
    other = EngineConfig(model=ModelOptions(tokenizer_path="y"))
    assert tokenizer_source(other, checkpoint).path == Path("y")


def test_fields_that_determine_nothing_are_left_out() -> None:
    config = SimpleNamespace(width=3, _name_or_path="/here", transformers_version="5")
    assert config_fields(Checkpoint(source="x", path=Path("x"), config=config)) == {"width": 3}
