"""Every process that computes for one server must see the same plugins."""

from __future__ import annotations

from collections.abc import Iterable

from sglang_plug.config import ConfigError
from sglang_plug.plugins import Plugins


def compare(plugins: Plugins, expected: Iterable[tuple[str, str, str]], who: str) -> None:
    """Raise ``ConfigError`` if ``plugins``, as the process ``who`` found them, are others than ``expected``."""
    if differing := set(plugins.fingerprint) ^ set(expected):
        names = ", ".join(sorted(" ".join(one) for one in differing))
        raise ConfigError(f"{who} sees other plugins than the server: {names}")
