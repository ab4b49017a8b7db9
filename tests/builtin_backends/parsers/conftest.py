"""Shared helpers of the parser tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from sglang_plug import CallArguments, CallEnd, CallStart, OutputParser, Reasoning, Text
from sglang_plug.contracts.text.parsers import Event, joined

Functions = Mapping[str, Mapping[str, Any]]


def parse(parser: type[OutputParser], pieces: Iterable[str], functions: Functions | None = None) -> list[Event]:
    """Parse an output that arrives in ``pieces``, and join its events; ``functions`` may be called."""
    reader = parser() if functions is None else parser.for_functions(functions)
    events = [event for piece in pieces for event in reader.feed(piece)]
    return joined([*events, *reader.finish()])


ENFORCED = (
    "deepseekv3", "deepseekv31", "deepseekv32", "deepseekv4", "ernie45", "gemma4", "glm45", "glm47", "gpt-oss",
    "granite", "hermes", "hunyuan", "hunyuan_a13b", "interns1", "kimi_k2", "lfm2", "llama3", "minimax-m2", "mistral",
    "nemotron_json", "pythonic", "qwen3_coder", "seed_oss", "step3",
)  # fmt: skip
"""One name of each format whose calls can be enforced."""
RANDOMLY_TESTED = sorted(
    {*ENFORCED} - {"deepseekv4", "ernie45", "glm45", "hunyuan_a13b", "interns1", "nemotron_json", "seed_oss"}
)
"""Formats whose random outputs are tested; the other ones differ only in their markers."""

VALUE_ENDS = [f"</{name}>".encode() for name in ("parameter", "arg_value", "steptml:parameter", "｜DSML｜parameter")]
"""Markers after free-text values, which random texts would hardly contain."""


def plain(events: Iterable[Event]) -> list[Any]:
    """Convert events to short tuples; a call becomes one tuple of index, name and arguments."""
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
    """Return ``read(parser, *pieces)``, which parses and returns ``plain`` events; a single piece is also read by
    characters."""

    def both(parser: type[OutputParser], *pieces: str, functions: Functions | None = None) -> list[Any]:
        result = parse(parser, pieces, functions)
        assert parse(parser, "".join(pieces), functions) == result  # characters one by one
        return plain(result)

    return both
