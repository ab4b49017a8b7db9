"""Parsing of flags, environment and a YAML file into a ``ServerConfig``, by ``option_table``.

The command line takes precedence over the environment, that over the file, and that over the defaults.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from sglang_plug.config import AUTO, NO_GRAMMARS, ConfigError
from sglang_plug.plugins.flags import ENVIRONMENT_KEYS, ENVIRONMENT_PREFIX, KEYS, read_config_file, variable_of
from sglang_plug.plugins.registry import PluginError, Plugins
from sglang_plug.system.command_line import Parser
from sglang_plug.system.hints import did_you_mean

from .config import ServerConfig
from .option import Option
from .option_aliases import alias_hint
from .option_table import GROUPS, by_key
from .option_table import options as all_options

NO_PREFIX_CACHE = "none"
NEARLY_THE_SAME = 0.9
"""Similarity of names from which a variable counts as misspelt: other programs may use our prefix."""


@dataclasses.dataclass(frozen=True, slots=True)
class OptionSources:
    """Raw values of options by source; each source maps the key of an option to its value."""

    command_line: Mapping[str, Any]
    environment: Mapping[str, str]
    file: Mapping[str, Any]
    file_name: str | None = None

    def source(self, option: Option) -> str:
        """Describe the source of the value of ``option``; empty for the default."""
        if option.key in self.command_line:
            return "command line"
        if option.key in self.environment:
            return "environment"
        return f"file {self.file_name}" if option.key in self.file else ""

    def name(self, option: Option) -> str:
        """Return the name of ``option`` in the source of its value, with the file if there is one."""
        source = self.source(option)
        if source == "environment":
            return option.variable
        return f"{option.key} (in {self.file_name})" if source.startswith("file") else option.flags[0]


def add_arguments(parser: argparse.ArgumentParser, plugins: Plugins) -> None:
    """Add every option of the table in its group, and the model as a positional argument."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="the same as --model-path")
    for group in GROUPS:
        section = parser.add_argument_group(group.title)
        for option in group.options:
            section.add_argument(*option.flags, **_argument(option, plugins))
    if isinstance(parser, Parser):
        parser.explain = lambda flag: alias_hint(flag, parser._option_string_actions)


def server_config(options: argparse.Namespace, plugins: Plugins) -> ServerConfig:
    """Return the configuration to serve. Raises ``ConfigError`` naming the option and the source of its value."""
    sources = _option_sources(options)
    values = _validate(sources)
    if values.pop("disable_radix_cache", False):
        _disable_prefix_cache(values, sources)
    if values.pop("is_embedding", False):
        _serve_embeddings(values)
    if values.get("skip_tokenizer_init"):
        values.setdefault("grammar_backend", NO_GRAMMARS)  # grammars need the texts of tokens
    rows = by_key()
    if preferred := values.get("preferred_sampling_params"):
        values["preferred_sampling_params"] = _preferred(
            preferred, sources.name(rows["preferred_sampling_params"]), plugins
        )
    if algorithm := values.get("speculative_algorithm"):
        values["speculative_algorithm"] = _lower_case(algorithm, rows["speculative_algorithm"], plugins)
    if policy := values.get("routing_policy"):
        values["routing_policy"] = _without_alias(policy, rows["routing_policy"], plugins)
    for key, value in values.items():
        _check_component(rows[key], value, sources, plugins)
    fields = {path: value for key, value in values.items() if (path := rows[key].field) is not None}
    return _replace(ServerConfig(), {**fields, "engine.plugins": plugins.options})


def named_options(options: Mapping[str, Any], plugins: Plugins, who: str) -> ServerConfig:
    """Return the configuration for options given by name, with underscores: ``{"max_total_tokens": 4096}``.

    ``who`` takes them, for the error. Variables of the environment count as for ``sglang-plug serve``.
    Raises ``ConfigError`` naming the option.
    """
    rows = by_key()
    if unknown := sorted(set(options) - set(rows)):
        if unknown[0] in KEYS:
            raise ConfigError(
                f"{who} takes the option {unknown[0]!r} as a part of 'plugins', see PluginOptions of sglang_plug"
            )
        hint = unknown_hint(unknown[0], rows)
        raise ConfigError(f"{who} has no option {unknown[0]!r}{hint}; see 'sglang-plug serve --help'")
    return server_config(argparse.Namespace(**{rows[name].key: value for name, value in options.items()}), plugins)


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


def _option_sources(options: argparse.Namespace) -> OptionSources:
    named = {option.key: vars(options)[option.key] for option in all_options() if option.key in vars(options)}
    if (positional := getattr(options, "model", None)) is not None:
        if named.get("model_path", positional) != positional:
            raise ConfigError(f"two models: MODEL is {positional!r}, --model-path is {named['model_path']!r}")
        named["model_path"] = positional
    environment = {option.key: text for option in all_options() if (text := os.environ.get(option.variable))}
    file = getattr(options, "config", None)
    return OptionSources(named, environment, {} if file is None else _from_file(file), file)


def _from_file(file: str) -> dict[str, Any]:
    rows = by_key()
    values: dict[str, Any] = {}
    for name, value in read_config_file(file).items():
        if name in KEYS:
            continue
        if name not in rows:
            raise ConfigError(f"{file}: unknown key {name!r}{unknown_hint(name, [*rows, *KEYS])}")
        key = rows[name].key
        if key in values:
            raise ConfigError(f"{file}: {key!r} is given twice, the second time as {name!r}")
        values[key] = value
    return values


def unknown_hint(name: str, known: Iterable[str]) -> str:
    """Return the end of the error for an unknown option: a hint for another server's option, or the nearest name."""
    known = list(known)
    hint = alias_hint(name, known)
    return did_you_mean(name, known) if hint is None else f": {hint}"


def _validate(sources: OptionSources) -> dict[str, Any]:
    """Map the keys of all options that some source sets to their converted values."""
    try:
        options = options_model()(**{**sources.file, **sources.environment, **sources.command_line})
    except ValidationError as error:
        messages = "\n".join(_explain(sources, dict(details)) for details in error.errors())
        raise ConfigError(messages) from error
    return {key: getattr(options, key) for key in options.model_fields_set}


def _explain(sources: OptionSources, error: Mapping[str, Any]) -> str:
    option = by_key()[str(error["loc"][0])]
    message = str(error["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")
    return f"{sources.name(option)}: {message}, got {error['input']!r}{_service_hint(sources, option)}"


def _service_hint(sources: OptionSources, option: Option) -> str:
    """Explain a value that Kubernetes set: it describes services in variables that may be named like ours."""
    if sources.source(option) != "environment" or not sources.environment[option.key].startswith("tcp://"):
        return ""
    return "; Kubernetes sets this variable for a Service: rename the Service, or set enableServiceLinks: false"


def misspelt_variables(environment: Mapping[str, str]) -> list[str]:
    """Return a line for each variable that looks like one of ours but has no effect."""
    known = [variable_of(key) for key in (*by_key(), *ENVIRONMENT_KEYS, "config")]
    flags = {variable_of(key): key.replace("_", "-") for key in KEYS}
    unknown = sorted(name for name in environment if name.startswith(ENVIRONMENT_PREFIX) and name not in known)
    lines = [
        f"{name} has no effect; use --{flags[name]} or the configuration file" for name in unknown if name in flags
    ]
    near = {name: get_close_matches(name, known, 1, NEARLY_THE_SAME) for name in unknown if name not in flags}
    lines += [f"{name} is not an option; did you mean {matches[0]}?" for name, matches in near.items() if matches]
    return lines


@functools.cache
def options_model() -> type[BaseModel]:
    """Return a model with one field per option, which checks and converts the values of all sources."""
    config = ConfigDict(extra="forbid", coerce_numbers_to_str=True, protected_namespaces=())
    fields: dict[str, Any] = {option.key: (_annotation(option), None) for option in all_options()}
    return create_model("Options", __config__=config, **fields)


def _annotation(option: Option) -> Any:
    if option.kind is dict:
        return Annotated[dict[str, Any], BeforeValidator(_json_object)]
    if option.kind is tuple:
        return Annotated[tuple[str, ...], BeforeValidator(_names)]
    if option.choices:
        return Literal[option.choices]
    if option.kind is bool:
        return bool
    if option.kind is str:
        return Annotated[str, AfterValidator(_not_empty)]
    bounds = Field(ge=option.minimum, le=option.maximum, gt=option.above, lt=option.below, allow_inf_nan=False)
    if option.kind is int:
        bounds = Field(ge=option.minimum, le=option.maximum, gt=option.above, lt=option.below)
    return Annotated[option.kind, bounds, BeforeValidator(_not_bool)]


def _json_object(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"must be a JSON object ({error})") from error
    if not isinstance(parsed, dict):
        raise ValueError("must be a JSON object")
    return parsed


def _names(value: Any) -> Any:
    items = [value] if isinstance(value, str | int | float) and not isinstance(value, bool) else value
    if not isinstance(items, list | tuple):
        return value
    names = [part for item in items for part in (item.split(",") if isinstance(item, str) else [item]) if part]
    if items and not names:
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


def _disable_prefix_cache(values: dict[str, Any], sources: OptionSources) -> None:
    """Apply ``--disable-radix-cache`` unless a source of higher precedence names a prefix cache."""
    rows = by_key()
    disable, prefix_cache = rows["disable_radix_cache"], rows["prefix_cache"]
    precedence = {"command line": 3, "environment": 2, "": 0}
    ranks = [precedence.get(sources.source(option), 1) for option in (disable, prefix_cache)]
    if ranks[0] < ranks[1]:
        return
    if ranks[0] == ranks[1] and values["prefix_cache"] != NO_PREFIX_CACHE:
        raise ConfigError(
            f"{sources.name(disable)} and {sources.name(prefix_cache)} {values['prefix_cache']!r} contradict each "
            "other; remove one of them"
        )
    values["prefix_cache"] = NO_PREFIX_CACHE


def _serve_embeddings(values: dict[str, Any]) -> None:
    if values.get("task", AUTO) == AUTO:
        values["task"] = "embed"
    if values["task"] == "generate":
        raise ConfigError("--is-embedding and --task generate contradict each other; remove one of them")


def _preferred(values: Mapping[str, Any], name: str, plugins: Plugins) -> dict[str, Any]:
    from sglang_plug_api.text.default_sampling_params import default_sampling_params

    from .request_fields import request_fields  # --help must not import the request bodies

    try:
        return default_sampling_params(values, request_fields(plugins))
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


def _lower_case(name: str, option: Option, plugins: Plugins) -> str:
    """Return ``name`` in lower case, unless a component has exactly this name."""
    assert option.component is not None
    return name if name in plugins.names(option.component) else name.lower()


def _without_alias(name: str, option: Option, plugins: Plugins) -> str:
    """Return the name here of a component with a name of another server, unless a component has exactly this name."""
    assert option.component is not None
    return name if name in plugins.names(option.component) else dict(option.aliases).get(name, name)


def _check_component(option: Option, value: Any, sources: OptionSources, plugins: Plugins) -> None:
    """Raise ``PluginError`` for a name that no plugin declares, before any process starts."""
    if option.component is None:
        return
    for name in value if isinstance(value, tuple) else (value,):
        if name == AUTO or name in option.others:
            continue
        try:
            plugins.get(option.component, name, others=option.others_and_auto())
        except PluginError as error:
            raise PluginError(f"{sources.name(option)}: {error}") from error


def _replace(config: Any, fields: Mapping[str, Any]) -> Any:
    """Return a copy of a frozen dataclass with ``{"path.to.field": value}`` replaced."""
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
