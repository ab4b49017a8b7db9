"""JSON responses with many large entries, which are encoded without delaying other requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import Response

from sglang_plug_api.http.errors import json_bytes


async def large_list_response(values: Iterable[Any], headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with a list of ``values``."""
    return Response(await _list_bytes(values), 200, headers, "application/json")


async def large_object_response(
    fields: Mapping[str, Any], headers: Mapping[str, str] | None = None, *, large: str
) -> Response:
    """Return a response with ``fields``, of which the one named ``large`` is a long list."""
    parts = []
    for name, value in fields.items():
        parts.append(json_bytes(name) + b":" + (await _list_bytes(value) if name == large else json_bytes(value)))
    return Response(b"{" + b",".join(parts) + b"}", 200, headers, "application/json")


async def _list_bytes(values: Iterable[Any]) -> bytes:
    """Return a JSON list; between two of its values, other requests are served."""
    parts = []
    for value in values:
        parts.append(json_bytes(value))
        await asyncio.sleep(0)
    return b"[" + b",".join(parts) + b"]"
