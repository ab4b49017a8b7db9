"""An option of ``sglang-plug serve``: one row of ``option_table``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang_plug.config import AUTO
from sglang_plug.plugins.flags import variable_of
from sglang_plug.plugins.installed.discovery import DISTRIBUTION
from sglang_plug.plugins.registry import Component, Plugins

from .config import ServerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option. Its key (in YAML, in errors, as ``dest``) is its first flag with underscores for dashes."""

    flags: tuple[str, ...]
    """The flag, then its aliases."""
    field: str | None
    """Path from ``ServerConfig``, e.g. ``"engine.cache.page_size"``; ``None``: see ``parsing.server_config``."""
    help: str
    kind: type = str
    """``str``, ``int``, ``float``, ``bool``, ``dict`` (a JSON object) or ``tuple`` (a list)."""
    component: str | None = None
    """Kind of the component that the value names."""
    others: tuple[str, ...] = ()
    """Accepted values besides the names of components."""
    aliases: tuple[tuple[str, str], ...] = ()
    """Pairs of the name of a component on another server, and its name here."""
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    """Exclusive lower bound of the value."""
    below: float | None = None
    """Exclusive upper bound of the value."""
    metavar: str | None = None
    several: bool = False
    """True if the flag of a ``tuple`` takes several values in a row."""

    @property
    def key(self) -> str:
        """The name in a YAML file, with underscores."""
        return _key(self.flags[0])

    @property
    def keys(self) -> tuple[str, ...]:
        """Every name accepted in a YAML file, with underscores."""
        return tuple(map(_key, self.flags))

    @property
    def variable(self) -> str:
        """The environment variable."""
        return variable_of(self.key)

    @property
    def default(self) -> Any:
        """The value of the field if no source sets it; ``None`` if the option has no field."""
        return None if self.field is None else config_value(ServerConfig(), self.field)

    def describe(self, plugins: Plugins) -> str:
        """Return the text for ``--help``: help, accepted values with the plugins that offer them, and the default."""
        parts = [self.help]
        if names := self._names(plugins):
            parts.append("one of: " + ", ".join(names))
        default = self.default
        if default not in (None, False, (), {}, AUTO):
            parts.append(f"default: {default}")
        return "; ".join(parts)

    def names(self, plugins: Plugins) -> list[str]:
        """Return the values that are accepted where they are limited: choices, or names of components and others.

        Components that are in use anyway are left out.
        """
        if self.component is None:
            return list(self.choices)
        return list(dict.fromkeys([*self.others_and_auto(), *(each.spec.name for each in self._components(plugins))]))

    def _names(self, plugins: Plugins) -> list[str]:
        if self.component is None:
            return list(self.choices)
        names = self.others_and_auto()
        for component in self._components(plugins):
            owner = component.plugin.distribution
            names.append(component.spec.name + ("" if owner == DISTRIBUTION else f" ({owner})"))
        return names

    def others_and_auto(self) -> list[str]:
        """Return the accepted values that are not names of components."""
        return [AUTO, *self.others] if self.default == AUTO else [*self.others]

    def _components(self, plugins: Plugins) -> list[Component]:
        return [each for each in plugins.all(self.component) if not getattr(each.spec, "enabled", False)]


@dataclass(frozen=True, slots=True)
class Group:
    """Options that ``--help`` shows under one heading."""

    title: str
    options: tuple[Option, ...]


def option(flags: str, field: str | None, text: str, kind: type = str, **more: Any) -> Option:
    """Return a row of the table; ``flags`` are separated by blanks."""
    return Option(flags=tuple(flags.split()), field=field, help=text, kind=kind, **more)


def config_value(config: ServerConfig, path: str) -> Any:
    """Return the value at ``path``, e.g. ``"engine.cache.page_size"``."""
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _key(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")
