"""Requests for ``sglang-plug plugins test``."""

from __future__ import annotations

from typing import Any

MESSAGES = [{"role": "user", "content": "Hello"}]


def requests() -> dict[str, Any]:
    """Return the arguments of ``check_route``."""
    message = {"model": "default", "max_tokens": 8, "temperature": 0, "messages": MESSAGES}
    return {
        "requests": [
            ("POST", "/v1/messages", message),
            ("POST", "/v1/messages", {**message, "stream": True}),
            ("POST", "/v1/messages/count_tokens", {"model": "default", "messages": MESSAGES}),
        ]
    }
