"""Free text that excludes some texts, compared with Python's own search."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest

from sglang_plug_backends.grammars.ebnf.free_text import free_text
from sglang_plug_backends.grammars.refusal import Refusal

TEXTS = ["".join(letters) for length in range(6) for letters in product("ab<", repeat=length)]


@pytest.mark.parametrize(
    ("excludes", "not_beginning"),
    [
        ([], ""),
        (["a"], ""),
        (["aba"], ""),
        (["<a", "ab<", "bb"], ""),
        ([], "a*b"),
        (["<<"], "(ab|<)"),
        (["ba"], "<*a"),
    ],
)
def test_all_other_texts_are_accepted(converter: Any, excludes: list[str], not_beginning: str) -> None:
    compiled = converter("ebnf", free_text(excludes, not_beginning))
    for text in TEXTS:
        free = not any(excluded in text for excluded in excludes)
        free &= not not_beginning or re.match(not_beginning, text) is None
        assert compiled.accepts(text) == free, text
    assert compiled.accepts("é漢\n\0🙂") and not compiled.accepts(b"\xff") and not compiled.accepts("\ud800")


def test_refusals() -> None:
    for excludes, not_beginning, words in (
        (["x" * 5000], "", "too large"),
        ([], "a*", "the empty text cannot be excluded"),
        ([], "(?=a)", "lookarounds"),
    ):
        with pytest.raises(Refusal, match=words):
            free_text(excludes, not_beginning)
