"""The names of a new plugin: of its component, its distribution and its package."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass

from sglang_plug import AUTO, PluginError
from sglang_plug.plugins.installed.discovery import DISTRIBUTION, normalise

PREFIX = f"{DISTRIBUTION}-"
LONGEST = 40
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class PluginNames:
    """The names that a plugin is made of.

    Args:
        short: lower-case words with hyphens: ``my-policy``.
    """

    short: str

    @classmethod
    def of(cls, name: str) -> PluginNames:
        """Return the names for what the user typed, with or without the prefix ``sglang-plug-``.

        Raises ``PluginError`` if no distribution, package or component can have that name.
        """
        short = normalise(name).removeprefix(PREFIX)
        if not NAME.fullmatch(short) or short == AUTO or not name.isascii():
            raise PluginError(
                f"{name!r} cannot be the name of a plugin: it must consist of letters, digits and hyphens, begin with "
                f"a letter and end with a letter or digit, and not be {AUTO!r}"
            )
        if len(short) > LONGEST:
            raise PluginError(f"{name!r} is too long for the name of a plugin: at most {LONGEST} characters")
        names = cls(short)
        if importlib.util.find_spec(names.package) is not None:
            raise PluginError(f"there is a package {names.package!r} already, so the plugin needs another name")
        return names

    @property
    def distribution(self) -> str:
        """``sglang-plug-my-policy``."""
        return f"{PREFIX}{self.short}"

    @property
    def module(self) -> str:
        """``my_policy``."""
        return self.short.replace("-", "_")

    @property
    def package(self) -> str:
        """``sglang_plug_my_policy``."""
        return self.distribution.replace("-", "_")

    @property
    def title_case(self) -> str:
        """``MyPolicy``."""
        return "".join(part.capitalize() for part in self.short.split("-"))
