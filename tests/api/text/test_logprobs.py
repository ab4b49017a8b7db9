"""Tests of the three formats of log-probabilities."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_plug import TokenLogprob
from sglang_plug_api.text.logprobs import (
    LOWEST,
    TextOffsets,
    alternative_triples,
    chat_logprobs,
    completion_logprobs,
    finite,
    token_triples,
)

A, B, C = 97, 98, 233
FIRST = TokenLogprob(A, None)
SECOND = TokenLogprob(B, -0.5, ((B, -0.5), (A, -1.0)), ((C, float("-inf")),))
THIRD = TokenLogprob(C, -0.25, ((C, -0.25), (A, -2.0)), ((C, -0.25),))


@pytest.fixture
def tokenizer(text_engine: Any) -> Any:
    return text_engine().tokenizer


def test_minus_infinity_has_a_number() -> None:
    assert finite(float("-inf")) == LOWEST
    assert finite(-3.5) == -3.5


def test_for_chat(tokenizer: Any) -> None:
    logprobs = chat_logprobs([SECOND, THIRD], tokenizer)
    assert logprobs["refusal"] is None
    first, second = logprobs["content"]
    assert (first["token"], first["bytes"], first["logprob"]) == ("b", [98], -0.5)
    assert [(alternative["token"], alternative["logprob"]) for alternative in first["top_logprobs"]] == [
        ("b", -0.5),
        ("a", -1.0),
    ]
    assert second["bytes"] == [195, 169]


def test_for_completion(tokenizer: Any) -> None:
    logprobs = completion_logprobs([FIRST, SECOND, THIRD], tokenizer, 2, [10, 11, 12])
    assert logprobs == {
        "tokens": ["a", "b", "é"],
        "token_logprobs": [None, -0.5, -0.25],
        "top_logprobs": [None, {"b": -0.5, "a": -1.0}, {"é": -0.25, "a": -2.0}],
        "text_offset": [10, 11, 12],
    }
    assert completion_logprobs([SECOND], tokenizer, 0, [0])["top_logprobs"] is None


def test_for_generate(tokenizer: Any) -> None:
    assert token_triples([FIRST, SECOND], None) == [(None, A, None), (-0.5, B, None)]
    assert token_triples([SECOND], tokenizer) == [(-0.5, B, "b")]
    assert alternative_triples([FIRST, SECOND], tokenizer, "top") == [None, [(-0.5, B, "b"), (-1.0, A, "a")]]
    assert alternative_triples([SECOND, THIRD], None, "ids") == [[(LOWEST, C, None)], [(-0.25, C, None)]]


class Bytes:
    """A tokenizer of bytes; tokens above 255 are special ones, named ``<N>``."""

    def decoder(self, *, skip_special: bool = True, prompt: Sequence[int] = ()) -> Any:
        return BytesDecoder(skip_special)


class BytesDecoder:
    def __init__(self, skip_special: bool) -> None:
        self._skip_special, self._decoder = skip_special, codecs.getincrementaldecoder("utf-8")()

    def feed(self, tokens: Sequence[int]) -> str:
        texts = []
        for token in tokens:
            special = "" if self._skip_special else f"<{token}>"
            texts.append(special if token > 255 else self._decoder.decode(bytes((token,))))
        return "".join(texts)


def offsets(pieces: Iterable[Sequence[int]], **options: Any) -> list[int]:
    text_offsets = TextOffsets(Bytes(), (), **{"skip_special": True, **options})  # type: ignore[arg-type]
    return [offset for piece in pieces for offset in text_offsets.of_output(piece)]


def test_special_tokens_that_are_left_out_have_no_characters() -> None:
    tokens = [300, *b"ab", 301, *b"c"]
    assert offsets([tokens]) == [0, 0, 1, 2, 2]
    assert offsets([tokens], skip_special=False) == [0, 5, 6, 7, 12]


def test_the_bytes_of_a_character_begin_where_it_does() -> None:
    assert offsets([[*"a漢字b".encode()]]) == [0, 1, 1, 1, 2, 2, 2, 3]


@given(st.lists(st.integers(0, 12), max_size=4))
def test_offsets_do_not_depend_on_the_pieces(cuts: list[int]) -> None:
    tokens = [300, *"é漢 a".encode(), 301, 98]
    bounds = [0, *sorted(cut for cut in cuts if cut < len(tokens)), len(tokens)]
    pieces = [tokens[start:end] for start, end in pairwise(bounds)]
    assert offsets(pieces) == offsets([tokens])


def test_special_tokens_that_the_echo_lacks_have_no_characters() -> None:
    text_offsets = TextOffsets(Bytes(), (), "ab", skip_special=True)  # type: ignore[arg-type]
    assert text_offsets.of_prompt([300, *b"ab"]) == [0, 0, 1]
    assert text_offsets.of_output([301, 99]) == [2, 2]


def test_an_echoed_prompt_comes_first() -> None:
    text_offsets = TextOffsets(Bytes(), (), "<300>ab", skip_special=True)  # type: ignore[arg-type]
    assert text_offsets.of_prompt([300, *b"ab"]) == [0, 5, 6]
    assert text_offsets.of_output([301, 99]) == [7, 7]
