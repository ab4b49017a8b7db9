"""Tests of ``/encode``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Fixture = Callable[..., Any]


def test_one_text(served: Fixture, tiny: Fixture) -> None:
    app = served("decoder")
    answer = app.answer("/encode", {"model": "any", "text": "Once upon a time"})
    (expected,) = app.answer("/v1/embeddings", {"input": "Once upon a time"})["data"]
    assert answer["embedding"] == pytest.approx(expected["embedding"], abs=1e-6)
    meta = answer["meta_info"]
    assert meta["prompt_tokens"] == 4 and meta["e2e_latency"] > 0 and len(meta["id"]) == 32
    ids = app.answer("/encode", {"input_ids": tiny("decoder").tokens("once upon a time")})
    assert ids["embedding"] == pytest.approx(answer["embedding"], abs=1e-6)


def test_several_texts_and_ids(served: Fixture) -> None:
    app = served("decoder")
    answers = app.answer("/encode", {"text": ["hi", "a panda"], "rid": ["x", "y"]})
    assert [answer["meta_info"]["id"] for answer in answers] == ["x", "y"]
    listed = app.answer("/encode", {"text": ["hi"], "rid": "z"})
    assert [answer["meta_info"]["id"] for answer in listed] == ["z-0"]
    assert listed[0]["embedding"] == pytest.approx(answers[0]["embedding"], abs=1e-6)


def test_dimensions(served: Fixture) -> None:
    app = served("decoder")
    cut = app.answer("/encode", {"text": "hi", "dimensions": 4})["embedding"]
    assert len(cut) == 4 and sum(value * value for value in cut) == pytest.approx(1)
    assert "dimensions" in app.refusal("/encode", {"text": "hi", "dimensions": 1000})["message"]


def test_scores_of_a_reward_model(served: Fixture, tiny: Fixture) -> None:
    answer = served("reward").answer("/encode", {"text": "hi"})
    assert answer["embedding"] == pytest.approx(tiny("reward").logits("hi"), abs=1e-5)
    assert "dimensions" in served("reward").refusal("/encode", {"text": "hi", "dimensions": 1})["message"]


@pytest.mark.parametrize(
    "body", [{}, {"text": ""}, {"text": ["hi", ""]}, {"input_ids": []}, {"text": "a", "input_ids": [1]}]
)
def test_nothing_to_encode(body: Any, served: Fixture) -> None:
    served("decoder").refusal("/encode", body)


def test_images_are_refused(served: Fixture) -> None:
    assert served("decoder").refusal("/encode", {"text": "hi", "image_data": ["x"]})["param"] == "image_data"


def test_the_prefix_of_one_tenant_is_not_anothers(served: Fixture) -> None:
    app = served("decoder")
    text = " ".join(["once upon a time"] * 9)
    plain = [app.answer("/encode", {"text": text, "cache_salt": salt}) for salt in ("a", "a", "b")]
    assert [answer["meta_info"]["cached_tokens"] > 0 for answer in plain] == [False, True, False]
    for answer in plain[1:]:
        assert answer["embedding"] == pytest.approx(plain[0]["embedding"], abs=1e-5)
