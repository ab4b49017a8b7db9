"""The check that every process of a server sees the same plugins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sglang_plug.config import ConfigError
from sglang_plug.plugins.registry import Plugins


def compare(plugins: Plugins, other: Iterable[tuple[str, ...]], who: str) -> None:
    """Raise ``ConfigError`` if ``plugins`` differ from those of another process.

    Args:
        plugins: those of this process.
        other: the fingerprint of the other process.
        who: the one of the two processes that is not the server.
    """
    if differing := set(plugins.fingerprint) ^ set(other):
        names = ", ".join(sorted(" ".join(plugin) for plugin in differing))
        raise ConfigError(
            f"{who} sees other plugins than the server: {names}; install the same versions in both environments"
        )


def check_engine_plugins(plugins: Plugins, info: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` if an engine that started, described by its ``info``, has other plugins than ``plugins``.

    The engine processes of sglang-plug refuse to start with other plugins; those of other platforms may not notice.
    """
    compare(plugins, (tuple(plugin) for plugin in info.get("fingerprint", ())), "the engine")
