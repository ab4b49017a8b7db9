"""The flags that select plugins: command line over environment over the file named by ``--config``.

They are read first, because plugins declare the commands and the choices of their options.
"""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sglang_plug.config import ConfigError, PluginOptions
from sglang_plug.system.command_line import Parser, PartialParser

ENVIRONMENT_PREFIX = "SGLANG_PLUG_"
LIST_KEYS = ("plugins", "block_plugin", "plugin", "plugins_dir")
MAP_KEYS = {"prefer": "KIND:NAME=DISTRIBUTION", "set": "NAME.KEY=VALUE"}
"""The format of each value on the command line."""
KEYS = frozenset({*LIST_KEYS, *MAP_KEYS, "strict_plugins", "locked", "config"})
"""The keys of these flags in a configuration file."""
ENVIRONMENT_KEYS = ("plugins", "block_plugin", "strict_plugins", "locked")
SWITCHES = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def plugin_flags() -> Parser:
    """Return a parser of only the flags about plugins, to be the parent of every command's parser."""
    parser = PartialParser(add_help=False)
    group = parser.add_argument_group("plugins and configuration file")

    def add(flag: str, metavar: str, text: str) -> None:
        group.add_argument(flag, metavar=metavar, action="append", default=argparse.SUPPRESS, help=text)

    group.add_argument(
        "--config", metavar="FILE", default=argparse.SUPPRESS, help="YAML file; its keys are flags without the dashes"
    )
    add("--plugins", "NAME,…", "besides sglang-plug's own, load only these plugins, distributions or kind:name")
    add("--block-plugin", "NAME", "never import this plugin or distribution, or hide this kind:name; repeatable")
    add("--plugin", "FILE", "load a one-file plugin; repeatable")
    add("--plugins-dir", "DIR", "load the plugins in a folder; repeatable")
    add(
        "--prefer",
        "KIND:NAME=DISTRIBUTION",
        "the distribution whose component is used if several declare this name; repeatable",
    )
    add("--set", "NAME.KEY=VALUE", "a setting of a component, see `sglang-plug plugins show NAME`; repeatable")
    group.add_argument(
        "--strict-plugins",
        action=argparse.BooleanOptionalAction,
        default=argparse.SUPPRESS,
        help="refuse to start if a plugin fails to load",
    )
    group.add_argument(
        "--locked",
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="refuse to start with other plugins than those of this file, see `sglang-plug plugins freeze`",
    )
    return parser


def read_plugin_flags(
    argv: Sequence[str], environment: Mapping[str, str] | None = None
) -> tuple[PluginOptions, argparse.Namespace, list[str]]:
    """Return the plugin options, the parsed flags (``config`` always set) and the arguments left for the command.

    Raises ``ConfigError`` if a flag, a variable or the file is malformed.
    """
    environment = os.environ if environment is None else environment
    flags, rest = plugin_flags().parse_known_args(list(argv))
    flags.config = getattr(flags, "config", None) or environment.get(f"{ENVIRONMENT_PREFIX}CONFIG") or None
    sources = [
        ("{file}: {key}", {} if flags.config is None else read_config_file(flags.config)),
        ("{variable}", {key: text for key in ENVIRONMENT_KEYS if (text := environment.get(variable_of(key)))}),
        ("--{dashed}", vars(flags)),
    ]
    lists: dict[str, tuple[str, ...]] = {}
    maps: dict[str, dict[str, Any]] = {key: {} for key in MAP_KEYS}
    strict, locked = False, ""
    for pattern, source in sources:
        for key in sorted(KEYS & source.keys()):
            where = pattern.format(file=flags.config, key=key, variable=variable_of(key), dashed=key.replace("_", "-"))
            if key in LIST_KEYS:
                lists[key] = _names(source[key], where, split=key in ENVIRONMENT_KEYS)
            elif key in MAP_KEYS:
                _merge(maps[key], _pairs(source[key], where, MAP_KEYS[key]))
            elif key == "strict_plugins":
                strict = _switch(source[key], where)
            elif key == "locked":
                locked = _file_name(source[key], where)
    options = PluginOptions(
        allow=lists.get("plugins", ()),
        block=lists.get("block_plugin", ()),
        files=lists.get("plugin", ()),
        dirs=lists.get("plugins_dir", ()),
        prefer={key: str(value) for key, value in maps["prefer"].items()},
        strict=strict,
        locked=locked,
        settings=_by_component(maps["set"]),
    )
    return options, flags, rest


def variable_of(key: str) -> str:
    """Return the environment variable of an option."""
    return ENVIRONMENT_PREFIX + key.upper()


def read_config_file(file: str) -> dict[str, Any]:
    """Return the keys of a YAML file, with underscores for dashes and without empty values. Raises ``ConfigError``."""
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {file}: cannot be read: {error}") from error
    try:
        yaml = importlib.import_module("yaml")  # only who names a file needs the library
    except ImportError as error:
        raise ConfigError("--config needs PyYAML: pip install pyyaml") from error
    try:
        twice = _repeated_keys(yaml.compose(text, Loader=yaml.SafeLoader))
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--config {file}: is not YAML: {error}") from error
    if not isinstance(content, dict | None):
        raise ConfigError(f"--config {file}: must hold 'key: value' lines, not a {type(content).__name__}")
    if twice:
        raise ConfigError(f"--config {file}: {twice[0]!r} is given twice")
    return {str(key).replace("-", "_"): value for key, value in (content or {}).items() if value is not None}


def _repeated_keys(node: Any, depth: int = 4) -> list[str]:
    """Return the keys that a YAML mapping, or one inside of it, has twice; a dash counts as an underscore."""
    if type(node).__name__ != "MappingNode" or not depth:
        return []
    names = [str(key.value).replace("-", "_") for key, _ in node.value]
    repeated = [name for index, name in enumerate(names) if name in names[:index]]
    return repeated + [name for _, value in node.value for name in _repeated_keys(value, depth - 1)]


def _names(value: Any, where: str, split: bool) -> tuple[str, ...]:
    names = value if isinstance(value, list) else [value]
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{where}: must be a name or a list of names, got {value!r}")
    parts = [part for name in names for part in (name.split(",") if split else [name])]
    return tuple(part.strip() for part in parts if part.strip())


def _file_name(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{where}: must be the name of a file, got {value!r}")
    return os.path.abspath(value)  # the engine process reads it, too


def _pairs(value: Any, where: str, form: str) -> dict[str, Any]:
    """Return ``{"name": …}`` as it is, or parse a list of ``"name=value"``; ``form`` describes one in errors."""
    if isinstance(value, dict):
        return value
    pairs = {}
    for pair in value if isinstance(value, list) else [value]:
        name, equals, text = str(pair).partition("=")
        if not equals or not name:
            raise ConfigError(f"{where} {pair!r}: must look like {form}")
        pairs[name.strip()] = text
    return pairs


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Add values of a later source, which replace single values, also one level down."""
    for name, value in more.items():
        if isinstance(value, dict):
            into.update({f"{name}.{key}": inner for key, inner in value.items()})
        else:
            into[name] = value


def _by_component(pairs: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    settings: dict[str, dict[str, Any]] = {}
    for name, value in pairs.items():
        component, dot, key = name.rpartition(".")
        if not dot or not component or not key:
            raise ConfigError(f"--set {name!r}: must look like NAME.KEY=VALUE, where NAME is a component")
        settings.setdefault(component, {})[key] = value
    return settings


def _switch(value: Any, where: str) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() not in SWITCHES:
        raise ConfigError(f"{where}: must be true or false, got {value!r}")
    return SWITCHES[str(value).lower()]
