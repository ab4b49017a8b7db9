"""Turns flags, environment and a YAML file into a ``ServerConfig``, by ``option_table``.

What stands on the command line comes before the environment, that before the file, that before the default.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, create_model
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from sglang_plug.command_line import Parser, did_you_mean
from sglang_plug.config import AUTO, NO_GRAMMARS, ConfigError
from sglang_plug.plugin_flags import ENVIRONMENT_PREFIX, KEYS, read_config_file, variable_of
from sglang_plug.plugins import PluginError, Plugins

from .config import ServerConfig
from .foreign_options import elsewhere
from .option import Option
from .option_table import GROUPS, by_key
from .option_table import options as all_options

NO_PREFIX_CACHE = "none"
NEARLY_THE_SAME = 0.9
"""How near a variable must be to be a mistake: others may have names that begin like ours."""


@dataclasses.dataclass(frozen=True, slots=True)
class Given:
    """What the user said, source by source; the key of an option -> its raw value."""

    command_line: Mapping[str, Any]
    environment: Mapping[str, str]
    file: Mapping[str, Any]
    file_name: str | None = None

    def source(self, option: Option) -> str:
        """Where the value of ``option`` comes from, in words; empty for the default."""
        if option.key in self.command_line:
            return "command line"
        if option.key in self.environment:
            return "environment"
        return f"file {self.file_name}" if option.key in self.file else ""

    def name(self, option: Option) -> str:
        """What the user called ``option`` where the value comes from, and where that was."""
        source = self.source(option)
        if source == "environment":
            return option.variable
        return f"{option.key} (in {self.file_name})" if source.startswith("file") else option.flags[0]


def add_arguments(parser: argparse.ArgumentParser, plugins: Plugins) -> None:
    """Every option of the table, in groups, and the model as a positional argument."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="the same as --model-path")
    for group in GROUPS:
        section = parser.add_argument_group(group.title)
        for option in group.options:
            section.add_argument(*option.flags, **_argument(option, plugins))
    if isinstance(parser, Parser):
        parser.explain = elsewhere


def server_config(options: argparse.Namespace, plugins: Plugins) -> ServerConfig:
    """The configuration to serve. Raises ``ConfigError`` naming the option and where its value came from."""
    given = _given(options)
    values = _validate(given)
    if values.pop("disable_radix_cache", False):
        _disable_prefix_cache(values, given)
    if values.pop("is_embedding", False):
        _serve_embeddings(values)
    if values.get("skip_tokenizer_init"):
        values.setdefault("grammar_backend", NO_GRAMMARS)  # grammars are made of what the tokens stand for
    rows = by_key()
    if preferred := values.get("preferred_sampling_params"):
        values["preferred_sampling_params"] = _preferred(preferred, given.name(rows["preferred_sampling_params"]))
    if algorithm := values.get("speculative_algorithm"):
        values["speculative_algorithm"] = _small(algorithm, rows["speculative_algorithm"], plugins)
    for key, value in values.items():
        _check_component(rows[key], value, given, plugins)
    fields = {path: value for key, value in values.items() if (path := rows[key].field) is not None}
    return _replace(ServerConfig(), {**fields, "engine.plugins": plugins.options})


def _argument(option: Option, plugins: Plugins) -> dict[str, Any]:
    common = {
        "dest": option.key,
        "default": argparse.SUPPRESS,
        "help": option.describe(plugins).replace("%", "%%"),
    }
    if option.kind is bool:
        return {**common, "action": argparse.BooleanOptionalAction}
    metavar = option.metavar or {int: "N", float: "NUMBER"}.get(option.kind, option.flags[0].split("-")[-1].upper())
    several = {"action": "extend", "nargs": "+"} if option.several else {"action": "append"}
    return {**common, "metavar": metavar, **(several if option.kind is tuple else {})}


def _given(options: argparse.Namespace) -> Given:
    named = {option.key: vars(options)[option.key] for option in all_options() if option.key in vars(options)}
    if (positional := getattr(options, "model", None)) is not None:
        if named.get("model_path", positional) != positional:
            raise ConfigError(f"two models: MODEL is {positional!r}, --model-path is {named['model_path']!r}")
        named["model_path"] = positional
    environment = {option.key: text for option in all_options() if (text := os.environ.get(option.variable))}
    file = getattr(options, "config", None)
    return Given(named, environment, {} if file is None else _from_file(file), file)


def _from_file(file: str) -> dict[str, Any]:
    rows = by_key()
    found: dict[str, Any] = {}
    for name, value in read_config_file(file).items():
        if name in KEYS:
            continue
        if name not in rows:
            raise ConfigError(f"{file}: unknown key {name!r}{unknown_hint(name, [*rows, *KEYS])}")
        key = rows[name].key
        if key in found:
            raise ConfigError(f"{file}: {key!r} is given twice, the second time as {name!r}")
        found[key] = value
    return found


def unknown_hint(name: str, known: Iterable[str]) -> str:
    """What to say of an option that is not ``known`` here, behind its name: what it is called, or the nearest."""
    answer = elsewhere(name)
    return did_you_mean(name, known) if answer is None else f": {answer}"


def _validate(given: Given) -> dict[str, Any]:
    """The values that somebody gave, converted; the key of an option -> its value."""
    model = settings_model(given.file)
    try:
        settings = model(**given.command_line)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(given, dict(one)) for one in error.errors())) from error
    return {key: getattr(settings, key) for key in settings.model_fields_set}


def _explain(given: Given, error: Mapping[str, Any]) -> str:
    option = by_key()[str(error["loc"][0])]
    message = str(error["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")
    return f"{given.name(option)}: {message}, got {error['input']!r}{_service_hint(given, option)}"


def _service_hint(given: Given, option: Option) -> str:
    """Kubernetes tells every pod about the services beside it, in variables that may be called like ours."""
    if given.source(option) != "environment" or not given.environment[option.key].startswith("tcp://"):
        return ""
    return "; that is how Kubernetes tells of a Service: give it another name, or set enableServiceLinks: false"


def misspelt_variables(environment: Mapping[str, str]) -> list[str]:
    """A line for each variable that looks like one of ours and is none: it has no effect."""
    known = [variable_of(key) for key in (*by_key(), *KEYS)]
    ours = [name for name in environment if name.startswith(ENVIRONMENT_PREFIX) and name not in known]
    near = {name: get_close_matches(name, known, 1, NEARLY_THE_SAME) for name in sorted(ours)}
    return [f"{name} is no option; did you mean {found[0]}?" for name, found in near.items() if found]


def settings_model(file: Mapping[str, Any]) -> type[BaseSettings]:
    """A settings class with one field for each option; ``file`` comes after arguments and environment."""

    class Layered(BaseSettings):
        model_config = SettingsConfigDict(
            env_prefix=ENVIRONMENT_PREFIX,
            env_ignore_empty=True,
            extra="forbid",
            coerce_numbers_to_str=True,
            validate_default=False,
            protected_namespaces=(),
        )

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, dict(file))

    fields: dict[str, Any] = {option.key: (_annotation(option), None) for option in all_options()}
    return create_model("Options", __base__=Layered, **fields)


def _annotation(option: Option) -> Any:
    if option.kind is dict:
        return Annotated[dict[str, Any], NoDecode, BeforeValidator(_json_object)]
    if option.kind is tuple:
        return Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)]
    if option.choices:
        return Literal[option.choices]
    if option.kind is bool:
        return bool
    if option.kind is str:
        return Annotated[str, AfterValidator(_not_empty)]
    bounds = Field(ge=option.least, le=option.most, gt=option.above, lt=option.below, allow_inf_nan=False)
    if option.kind is int:
        bounds = Field(ge=option.least, le=option.most, gt=option.above, lt=option.below)
    return Annotated[option.kind, bounds, BeforeValidator(_not_bool)]


def _json_object(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        found = json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"must be a JSON object ({error})") from error
    if not isinstance(found, dict):
        raise ValueError("must be a JSON object")
    return found


def _names(value: Any) -> Any:
    given = [value] if isinstance(value, str | int | float) and not isinstance(value, bool) else value
    if not isinstance(given, list | tuple):
        return value
    names = [part for one in given for part in (one.split(",") if isinstance(one, str) else [one]) if part]
    if given and not names:
        raise ValueError("must not be empty")
    return names


def _not_empty(value: str) -> str:
    if not value:
        raise ValueError("must not be empty")
    return value


def _not_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def _disable_prefix_cache(values: dict[str, Any], given: Given) -> None:
    """``--disable-radix-cache`` loses to a prefix cache that was named in a stronger source."""
    rows = by_key()
    disable, prefix_cache = rows["disable_radix_cache"], rows["prefix_cache"]
    strength = {"command line": 3, "environment": 2, "": 0}
    ranks = [strength.get(given.source(option), 1) for option in (disable, prefix_cache)]
    if ranks[0] < ranks[1]:
        return
    if ranks[0] == ranks[1] and values["prefix_cache"] != NO_PREFIX_CACHE:
        raise ConfigError(
            f"{given.name(disable)} and {given.name(prefix_cache)} {values['prefix_cache']!r} contradict each other"
        )
    values["prefix_cache"] = NO_PREFIX_CACHE


def _serve_embeddings(values: dict[str, Any]) -> None:
    if values.setdefault("task", "embed") == "generate":
        raise ConfigError("--is-embedding and --task generate contradict each other")


def _preferred(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    from .preferred import preferred_sampling  # requests' fields are not needed for --help

    try:
        return preferred_sampling(values)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


def _small(name: str, option: Option, plugins: Plugins) -> str:
    """``name`` in small letters, unless there is a component of just this name."""
    assert option.component is not None
    return name if name in plugins.names(option.component) else name.lower()


def _check_component(option: Option, value: Any, given: Given, plugins: Plugins) -> None:
    """A name that no plugin declares is refused here, before a process is started."""
    if option.component is None:
        return
    for name in value if isinstance(value, tuple) else (value,):
        if name == AUTO or name in option.others:
            continue
        try:
            plugins.get(option.component, name)
        except PluginError as error:
            raise PluginError(f"{given.name(option)}: {error}") from error


def _replace(config: Any, fields: Mapping[str, Any]) -> Any:
    """A copy of a frozen dataclass with ``{"path.to.field": value}`` replaced."""
    nested: dict[str, dict[str, Any]] = {}
    for path, value in fields.items():
        head, _, tail = path.partition(".")
        nested.setdefault(head, {})[tail] = value
    return dataclasses.replace(
        config,
        **{
            head: inner[""] if "" in inner else _replace(getattr(config, head), inner) for head, inner in nested.items()
        },
    )
