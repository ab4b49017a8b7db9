"""The values of all options of a ``ServerConfig``, without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .config import ServerConfig
from .option import config_value
from .option_table import options

SECRET = frozenset({"api_key", "admin_api_key", "key_weight"})
HIDDEN = "********"


def option_values(config: ServerConfig) -> dict[str, Any]:
    """Return the value of each option under its name with underscores; secrets are hidden."""
    values: dict[str, Any] = {}
    for option in options():
        if option.field is None:  # an alias for a value of another option
            continue
        value = config_value(config, option.field)
        if option.key in SECRET:
            value = HIDDEN if value else None
        values[option.key] = dict(value) if isinstance(value, Mapping) else value
    return values
