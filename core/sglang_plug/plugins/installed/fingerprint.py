"""The check that every process of a server sees the same plugins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sglang_plug.config import ConfigError


def check_same_plugins(own: Iterable[tuple[str, ...]], other: Iterable[tuple[str, ...]], who: str) -> None:
    """Raise ``ConfigError`` if two processes see different plugins.

    Args:
        own: the fingerprint of the plugins of this process.
        other: that of the other process.
        who: the one of the two processes that is not the server.
    """
    if differing := set(own) ^ set(other):
        names = ", ".join(sorted(" ".join(plugin) for plugin in differing))
        raise ConfigError(
            f"{who} sees other plugins than the server: {names}; install the same versions in both environments"
        )


def check_engine_plugins(own: Iterable[tuple[str, ...]], info: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` if an engine that started, described by its ``info``, has other plugins than ``own``.

    The engine processes of sglang-plug refuse to start with other plugins; those of other platforms may not notice.
    """
    check_same_plugins(own, (tuple(plugin) for plugin in info.get("fingerprint", ())), "the engine")
