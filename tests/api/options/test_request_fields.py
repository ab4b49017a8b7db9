"""Request fields of logits processors in addition to those that bodies have already."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_plug import ConfigError, PluginOptions, Plugins
from sglang_plug_api.options.request_fields import request_fields
from tests import steering_plugin

SOURCE = Path(str(steering_plugin.__file__)).read_text()


def plugins_of(folder: Path, *sources: str, **options: tuple[str, ...]) -> Plugins:
    for number, source in enumerate(sources):
        (folder / f"steering_{number}.py").write_text(source)
    return Plugins.discover(PluginOptions(dirs=(str(folder),), strict=True, **options))


def test_fields_are_those_of_all_processors(tmp_path: Path) -> None:
    fields = request_fields(plugins_of(tmp_path, SOURCE))
    assert fields.names == {"steer", "steer_until", "no_repeat_window", "allowed_token_ids"}
    assert fields.check({"steer": {"token": 3}, "other": 1, "steer_until": None}) == {"steer": {"token": 3}}
    assert fields.refused == fields.refused_params == {}


def test_a_field_that_is_a_set_is_sent_without_repetitions(tmp_path: Path) -> None:
    fields = request_fields(plugins_of(tmp_path, SOURCE))
    assert fields.check({"allowed_token_ids": [7, 3, 7] * 1000, "steer": {"token": 3}}) == {
        "allowed_token_ids": [3, 7],
        "steer": {"token": 3},
    }
    schema = next(schema for name, schema, _ in fields.schemas("#/{name}", frozenset()) if name == "allowed_token_ids")
    assert schema["anyOf"][0]["type"] == "array" and "uniqueItems" not in schema["anyOf"][0]


@pytest.mark.parametrize("name", ["max_tokens", "messages", "temperature", "seed", "input", "regex", "logit_bias"])
def test_a_field_that_a_body_has_already_is_refused(tmp_path: Path, name: str) -> None:
    plugins = plugins_of(tmp_path, SOURCE.replace("no_repeat_window: int", f"{name}: int"))
    with pytest.raises(ConfigError, match=f"'window' .*declares the request field '{name}', which exists already"):
        request_fields(plugins)


def test_two_processors_with_one_field_are_both_named(tmp_path: Path) -> None:
    plugins = plugins_of(tmp_path, SOURCE, SOURCE.replace('"steer"', '"mine"').replace('"window"', '"other"'))
    with pytest.raises(
        ConfigError, match="'mine' from .* and .*'steer' from .* both declare the request field 'steer'"
    ):
        request_fields(plugins)


def test_one_of_two_may_be_blocked(tmp_path: Path) -> None:
    other = SOURCE.replace('"steer"', '"mine"').replace('"window"', '"other"')
    plugins = plugins_of(tmp_path, SOURCE, other, block=("logits-processor:mine", "logits-processor:window"))
    fields = request_fields(plugins)
    assert fields.names == {"steer", "steer_until", "no_repeat_window", "allowed_token_ids"} and fields.refused == {}


def test_a_blocked_one_has_its_fields_refused(tmp_path: Path) -> None:
    fields = request_fields(
        plugins_of(tmp_path, SOURCE, block=("logits-processor:window", "logits-processor:penalties"))
    )
    with pytest.raises(ValueError, match="no_repeat_window: logits-processor 'window' from .* is blocked"):
        fields.check({"no_repeat_window": 3})
    assert set(fields.refused_params) == {"frequency_penalty", "presence_penalty", "repetition_penalty"}


def test_an_unavailable_one_has_its_fields_refused(tmp_path: Path) -> None:
    source = SOURCE.replace("order=400", 'needs=("no_such_module",)')
    fields = request_fields(plugins_of(tmp_path, source))
    with pytest.raises(ValueError, match="no_repeat_window: .* is unavailable: not installed: no_such_module"):
        fields.check({"no_repeat_window": 3})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("no_repeat_window: int | None = None", "no_repeat_window: int"), "'no_repeat_window' needs a default"),
        (("no_repeat_window: int | None", "no_repeat_window: LogitsBatch | None"), "type that no request can hold"),
        ((":WindowFields", ":Nothing"), "could not be imported: AttributeError"),
        ((":WindowFields", ":NoRepeat"), "must be a dataclass or a msgspec.Struct"),
    ],
)
def test_a_class_that_is_no_class_of_fields_is_told(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    plugins = plugins_of(tmp_path, SOURCE.replace(*change))
    with pytest.raises(ConfigError, match=f"logits-processor 'window' from .*{message}"):
        request_fields(plugins)


def test_schemas_with_a_name_that_is_taken_get_another_one(tmp_path: Path) -> None:
    fields = request_fields(plugins_of(tmp_path, SOURCE))
    schemas = {name: schema for name, schema, _ in fields.schemas("#/{name}", frozenset({"Steer"}))}
    assert {"$ref": "#/SteerSteer"} in schemas["steer"]["anyOf"]
    names = {name for _, _, parts in fields.schemas("#/{name}", frozenset({"Steer"})) for name in parts}
    assert names == {"SteerSteer"}
