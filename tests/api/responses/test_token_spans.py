"""Tests of the mapping between tokens and the text that they were decoded to."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_plug_api.responses.token_spans import TokenSpans


def spans_of(*pieces: str | bytes) -> TokenSpans[str | bytes]:
    spans = TokenSpans[str | bytes]()
    spans.add((piece.encode() if isinstance(piece, str) else piece, piece) for piece in pieces)
    return spans


@pytest.mark.parametrize(
    ("pieces", "text", "expected", "remaining"),
    [
        (["a", "b", "c"], "ab", ["a", "b"], ["c"]),
        (["</think>", "a"], "a", ["a"], []),
        (["<think>", "x", "</think>", "a", "<end>"], "a", ["a"], ["<end>"]),
        ([" The", " end"], "The end", [" The", " end"], []),
        (["one two"], "one", ["one two"], []),
        ([b"\xc3", b"\xbc", "x"], "ü", [b"\xc3", b"\xbc"], ["x"]),
        (["a", "<special>", "b"], "ab", ["a", "<special>", "b"], []),
        ([], "a", [], []),
    ],
    ids=str,
)
def test_pieces_of_a_text_are_taken(pieces: list[Any], text: str, expected: list[Any], remaining: list[Any]) -> None:
    spans = spans_of(*pieces)
    assert spans.take(text) == expected
    assert spans.take_all() == remaining
    assert spans.take_all() == []


def test_texts_follow_each_other() -> None:
    spans = spans_of("Hm", ".", "</think>", "Hm", "!")
    assert spans.take("Hm.") == ["Hm", "."]
    assert spans.take("Hm!") == ["Hm", "!"]
