"""Markers of reasoning are converted to tokens whatever a tokenizer does to the beginning of a text."""

from __future__ import annotations

import pytest

from sglang_plug_api.text.reasoning import _tokens


class Words:
    """A tokenizer of words that include the blank before them; ``blank`` is put before every text."""

    def __init__(self, blank: str) -> None:
        self.blank, self.pieces = blank, list[str]()

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        first, *following = f"{self.blank}{text}".replace("<", " <").replace("  <", " <").split(" ")
        pieces = [first, *(f" {word}" for word in following)]
        parts = [part for piece in pieces for part in piece.partition("\n") if part]
        self.pieces += parts
        return list(range(len(self.pieces) - len(parts), len(self.pieces)))

    def piece_bytes(self, token: int) -> bytes:
        return self.pieces[token].encode()


@pytest.mark.parametrize("blank", ["", " "])
def test_marks_are_cut_without_what_is_added_before_them(blank: str) -> None:
    words = Words(blank)
    tokens = _tokens(words, "think>")  # type: ignore[arg-type]
    assert "".join(words.pieces[token] for token in tokens) == "think>"
    assert _tokens(words, "") == ()  # type: ignore[arg-type]
