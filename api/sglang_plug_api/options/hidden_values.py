"""Values that may contain a password, which no page and no report shows."""

from __future__ import annotations

from typing import Any

SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "PROXY")
HIDDEN = "******** (hidden)"


def shown(name: str, value: Any) -> Any:
    """Return ``value``, or a replacement if its name or its text suggest that it contains a password.

    The user's part of an address ends with ``@``.
    """
    is_secret = any(word in name.upper() for word in SECRET_WORDS) or "@" in str(value)
    return HIDDEN if is_secret and value else value
