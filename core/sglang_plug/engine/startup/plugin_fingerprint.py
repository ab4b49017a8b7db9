"""The check that every process of a server sees the same plugins."""

from __future__ import annotations

from collections.abc import Iterable

from sglang_plug.config import ConfigError
from sglang_plug.plugins.registry import Plugins


def compare(plugins: Plugins, expected: Iterable[tuple[str, str, str]], who: str) -> None:
    """Raise ``ConfigError`` if ``plugins``, as found by the process ``who``, differ from ``expected``."""
    if differing := set(plugins.fingerprint) ^ set(expected):
        names = ", ".join(sorted(" ".join(plugin) for plugin in differing))
        raise ConfigError(f"{who} sees other plugins than the server: {names}")
