"""Log-probabilities in three shapes."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_plug import TokenLogprob
from sglang_plug_api.text.logprobs import (
    LOWEST,
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
    logprobs = completion_logprobs([FIRST, SECOND, THIRD], tokenizer, 2, 10)
    assert logprobs == {
        "tokens": ["a", "b", "é"],
        "token_logprobs": [None, -0.5, -0.25],
        "top_logprobs": [None, {"b": -0.5, "a": -1.0}, {"é": -0.25, "a": -2.0}],
        "text_offset": [10, 11, 12],
    }
    assert completion_logprobs([SECOND], tokenizer, 0, 0)["top_logprobs"] is None


def test_for_generate(tokenizer: Any) -> None:
    assert token_triples([FIRST, SECOND], None) == [(None, A, None), (-0.5, B, None)]
    assert token_triples([SECOND], tokenizer) == [(-0.5, B, "b")]
    assert alternative_triples([FIRST, SECOND], tokenizer, "top") == [None, [(-0.5, B, "b"), (-1.0, A, "a")]]
    assert alternative_triples([SECOND, THIRD], None, "ids") == [[(LOWEST, C, None)], [(-0.25, C, None)]]
