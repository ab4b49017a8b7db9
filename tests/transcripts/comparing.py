"""Find the differences between two recordings."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .events import coarse
from .placeholders import LOCATIONS, ruled

Record = dict[str, Any]
LINES_SHOWN = 40
CLOSE = 1e-4
"""Maximum difference between log-probabilities of the same token."""
LONGEST_LINE = 400


@dataclass(frozen=True)
class Difference:
    """An exchange that differs between the recordings; ``lines`` is a diff."""

    name: str
    lines: list[str]


def read(file: Path) -> dict[str, Record]:
    """Return the exchanges of a recording by name."""
    with file.open(encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    return {record["name"]: record for record in records}


def without_locations(record: Record) -> Record:
    """Return a record with placeholders for locations in code."""

    def replaced(value: Any) -> Any:
        if isinstance(value, str):
            return ruled(LOCATIONS, "", value)
        return [replaced(item) for item in value] if isinstance(value, list) else value

    return {key: replaced(value) for key, value in record.items()}


def differences(
    before: Mapping[str, Record], after: Mapping[str, Record], *, prepare: Callable[[Record], Record], strict: bool
) -> Iterator[Difference]:
    """Yield the exchanges that differ.

    Unless ``strict``, streams may be cut into events at other tokens, because tokens that are computed while an event
    is being sent share the next event; and numbers may differ by ``CLOSE``, because they depend on which requests are
    computed together. Both depend on the load of the machine.
    """
    for name in [*before, *(name for name in after if name not in before)]:
        if name not in after or name not in before:
            yield Difference(name, [f"only in the {'first' if name in before else 'second'} recording"])
            continue
        record, other = prepare(before[name]), prepare(after[name])
        if record == other or (not strict and nearly(coarse(record), coarse(other))):
            continue
        if not strict:
            record, other = coarse(record), coarse(other)
        yield Difference(name, list(_shown(record, other)))


def nearly_equal(
    before: Mapping[str, Record], after: Mapping[str, Record], prepare: Callable[[Record], Record]
) -> dict[str, list[str]]:
    """Return the names of exchanges that are equal only because of an exception in ``differences``, by exception."""
    groups: dict[str, list[str]] = {"are cut into events at other tokens": [], "differ in last digits of numbers": []}
    cut, digits = groups.values()
    for name in before:
        if name not in after:
            continue
        record, other = prepare(before[name]), prepare(after[name])
        if record != other and coarse(record) == coarse(other):
            cut.append(name)
        elif record != other and nearly(coarse(record), coarse(other)):
            digits.append(name)
    return groups


def nearly(value: Any, other: Any) -> bool:
    """Return True if two values, JSON inside of strings included, differ only in numbers, and by at most ``CLOSE``."""
    if isinstance(value, float) and isinstance(other, float):
        return abs(value - other) <= CLOSE
    if isinstance(value, str) and isinstance(other, str) and value != other:
        first, second = _parsed(value), _parsed(other)
        return first is not None and second is not None and nearly(first, second)
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(nearly(value[key], other[key]) for key in value)
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(nearly, value, other))
    return bool(value == other) and type(value) is type(other)


def _parsed(text: str) -> Any:
    """Return the parsed JSON of a text or of the data of an event; ``None`` if it is no JSON."""
    head, mark, data = text.rpartition("data: ")
    try:
        parsed = json.loads(data)
    except ValueError:
        return None
    return [head + mark, parsed] if isinstance(parsed, dict | list) else None


def _shown(record: Record, other: Record) -> Iterator[str]:
    first, second = list(_lines(record)), list(_lines(other))
    lines = [line for line in difflib.unified_diff(first, second, "first", "second", lineterm="", n=2)][2:]
    yield from (line[:LONGEST_LINE] for line in lines[:LINES_SHOWN])
    if len(lines) > LINES_SHOWN:
        yield f"... and {len(lines) - LINES_SHOWN} more lines"


def _lines(record: Record) -> Iterator[str]:
    for key, value in record.items():
        for part in value if isinstance(value, list) else [value]:
            yield from (f"{key}: {line}" for line in _readable(part))


def _readable(part: Any) -> Iterable[str]:
    if not isinstance(part, str):
        return json.dumps(part, indent=1, ensure_ascii=False).splitlines()
    try:
        return json.dumps(json.loads(part), indent=1, ensure_ascii=False).splitlines()
    except ValueError:
        return part.splitlines() or [""]
