"""Shared helpers of the parser tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from sglang_plug import CallArguments, CallEnd, CallStart, OutputParser, Reasoning, Text
from sglang_plug.contracts.text.parsers import Event, joined


def parse(parser: type[OutputParser], pieces: Iterable[str]) -> list[Event]:
    """Parse one output that comes in ``pieces`` and join its events."""
    reader = parser()
    events = [event for piece in pieces for event in reader.feed(piece)]
    return joined([*events, *reader.finish()])


def plain(events: Iterable[Event]) -> list[Any]:
    """Convert events to short tuples; a call is one of them: index, name, arguments."""
    results: list[Any] = []
    for event in events:
        match event:
            case Text(text):
                results.append(text)
            case Reasoning(text):
                results.append(("thought", text))
            case CallStart(index, name):
                results.append((index, name, ""))
            case CallArguments(index, text):
                assert results[-1][0] == index
                results[-1] = (*results[-1][:2], text)
            case CallEnd(index):
                assert results[-1][0] == index
    return results


Read = Callable[..., list[Any]]


@pytest.fixture
def read() -> Read:
    """Return ``read(parser, *pieces)``: the ``plain`` events; a single piece is also read by characters."""

    def both(parser: type[OutputParser], *pieces: str) -> list[Any]:
        result = parse(parser, pieces)
        assert parse(parser, "".join(pieces)) == result  # characters one by one
        return plain(result)

    return both
