"""JSON of answers with long lists, which is made in parts so that other requests are served meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fastapi import Response

from .errors import json_bytes

PART = 1024
"""Number of values that are made and encoded at once; they take a few milliseconds."""


class LargeList(Sequence[Any]):
    """A list whose entries are made when they are read or encoded, and equal to a list of them.

    Args:
        items: what the entries are made of; not to be changed afterwards.
        entry: returns the entry of an item.
        weight: number of values in an entry, about.
    """

    def __init__(self, items: Sequence[Any], entry: Callable[[Any], Any], weight: int = 1) -> None:
        self._items = items
        self._entry = entry
        self._weight = max(1, weight)
        self._entries: list[Any] | None = None

    @property
    def size(self) -> int:
        """Number of values in all entries, about."""
        return len(self._items) * self._weight

    def entries(self) -> list[Any]:
        """Return all entries, which are made once."""
        if self._entries is None:
            self._entries = [self._entry(item) for item in self._items]
        return self._entries

    def parts(self) -> Iterator[list[Any]]:
        """Yield the entries in lists of about ``PART`` values, which are not kept."""
        step = max(1, PART // self._weight)
        for start in range(0, len(self._items), step):
            yield [self._entry(item) for item in self._items[start : start + step]]

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        return self.entries()[index]

    def __eq__(self, other: object) -> bool:
        return self.entries() == (other.entries() if isinstance(other, LargeList) else other)


def plain(value: Any) -> Any:
    """Return ``value`` with lists instead of each ``LargeList``."""
    match value:
        case LargeList():
            return value.entries()
        case dict():
            return {name: plain(inner) for name, inner in value.items()}
        case [dict(), *_]:
            return [plain(inner) for inner in value]
        case _:
            return value


async def plain_in_parts(value: Any) -> Any:
    """Return ``plain(value)``; between parts of large lists, other requests are served."""
    match value:
        case LargeList():
            entries = list[Any]()
            for part in value.parts():
                entries += part
                await asyncio.sleep(0)
            return entries
        case dict():
            return {name: await plain_in_parts(inner) for name, inner in value.items()}
        case [dict(), *_]:
            return [await plain_in_parts(inner) for inner in value]
        case _:
            return value


async def large_json_response(value: Any, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with ``value`` as JSON; see ``large_json_bytes``."""
    return Response(await large_json_bytes(value), 200, headers, "application/json")


async def large_json_bytes(value: Any) -> bytes:
    """Return ``value`` as JSON as ``json_bytes`` does; between parts of large lists, other requests are served.

    A ``LargeList`` may be in objects and in lists of objects. One that is in several places is encoded once.
    """
    encoded = _encoded_at_once(value)
    if encoded is None:
        parts = list[bytes]()
        await _encode(value, parts, {})
        encoded = b"".join(parts)
    return encoded


class _TooLarge(Exception):
    """A value has too many entries to be encoded at once."""


def _encoded_at_once(value: Any) -> bytes | None:
    """Return ``value`` as JSON; ``None`` if its large lists have more than ``PART`` values."""
    room = PART

    def entries(inner: Any) -> list[Any]:
        nonlocal room
        if not isinstance(inner, LargeList):
            raise TypeError(f"{type(inner).__name__} is not JSON")
        room -= inner.size
        if room < 0:
            raise _TooLarge
        return inner.entries()

    try:
        return json_bytes(value, entries)
    except _TooLarge:
        return None


async def _encode(value: Any, parts: list[bytes], encoded: dict[int, bytes]) -> None:
    """Append the JSON of ``value`` to ``parts``; ``encoded`` has that of each ``LargeList`` by its ``id``."""
    match value:
        case LargeList():
            if id(value) not in encoded:
                encoded[id(value)] = await _list_bytes(value)
            parts.append(encoded[id(value)])
        case dict():
            for index, (name, inner) in enumerate(value.items()):
                parts.append((b"," if index else b"{") + json_bytes(str(name)) + b":")
                await _encode(inner, parts, encoded)
            parts.append(b"}" if value else b"{}")
        case [dict(), *_]:
            for index, inner in enumerate(value):
                parts.append(b"," if index else b"[")
                await _encode(inner, parts, encoded)
            parts.append(b"]")
        case _:
            parts.append(json_bytes(value))


async def _list_bytes(values: LargeList) -> bytes:
    parts = []
    for part in values.parts():
        parts.append(json_bytes(part)[1:-1])
        await asyncio.sleep(0)
    return b"[" + b",".join(parts) + b"]"
