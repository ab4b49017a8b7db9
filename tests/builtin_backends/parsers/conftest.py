"""What the tests of parsers have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from sglang_plug import CallArguments, CallEnd, CallStart, OutputParser, Reasoning, Text
from sglang_plug.parsers import Event, joined


def parse(parser: type[OutputParser], pieces: Iterable[str]) -> list[Event]:
    """The events of one output that comes in ``pieces``, joined."""
    reader = parser()
    events = [event for piece in pieces for event in reader.feed(piece)]
    return joined([*events, *reader.finish()])


def plain(events: Iterable[Event]) -> list[Any]:
    """Events as short tuples; a call is one of them: index, name, arguments."""
    found: list[Any] = []
    for event in events:
        match event:
            case Text(text):
                found.append(text)
            case Reasoning(text):
                found.append(("thought", text))
            case CallStart(index, name):
                found.append((index, name, ""))
            case CallArguments(index, text):
                assert found[-1][0] == index
                found[-1] = (*found[-1][:2], text)
            case CallEnd(index):
                assert found[-1][0] == index
    return found


Read = Callable[..., list[Any]]


@pytest.fixture
def read() -> Read:
    """``read(parser, *pieces)``: what ``plain`` makes of the events; one piece is also read by characters."""

    def both(parser: type[OutputParser], *pieces: str) -> list[Any]:
        found = parse(parser, pieces)
        assert parse(parser, "".join(pieces)) == found  # characters one by one
        return plain(found)

    return both
