"""Tests of ``/v1/score`` with two texts, as clients of other servers send it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

Fixture = Callable[..., Any]
FIRST = "what is panda?"
TEXTS = ["hi", "The giant panda lives in China.", "once upon a time"]


def relevance(model: Any, first: str, second: str) -> float:
    return torch.tensor(model.logits(first, second)[0]).sigmoid().item()


def scores(app: Any, **body: Any) -> list[float]:
    data = app.answer("/v1/score", body)["data"]
    assert [(item["index"], item["object"]) for item in data] == [(index, "score") for index in range(len(data))]
    return [item["score"] for item in data]


def test_one_text_against_several(served: Fixture, tiny: Fixture) -> None:
    app, model = served("bert-reranker"), tiny("bert-reranker")
    expected = [relevance(model, FIRST, text) for text in TEXTS]
    assert scores(app, text_1=FIRST, text_2=TEXTS) == pytest.approx(expected, abs=1e-5)
    assert scores(app, text_1=[FIRST], text_2=TEXTS) == pytest.approx(expected, abs=1e-5)
    assert scores(app, text_1=FIRST, text_2=TEXTS[1]) == pytest.approx(expected[1:2], abs=1e-5)


@pytest.mark.parametrize(
    "names", [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")]
)
def test_as_many_on_both_sides(names: tuple[str, str], served: Fixture, tiny: Fixture) -> None:
    app, model = served("xlm-reranker"), tiny("xlm-reranker")
    firsts = [FIRST, "bad bear", "yes"]
    expected = [relevance(model, *pair) for pair in zip(firsts, TEXTS, strict=True)]
    assert len(set(expected)) == 3
    assert scores(app, **dict(zip(names, (firsts, TEXTS), strict=True))) == pytest.approx(expected, abs=1e-5)


def test_limits_of_zero_tokens_are_none(served: Fixture) -> None:
    app = served("xlm-reranker")
    limits = {"max_tokens_per_doc": 0, "max_tokens_per_query": 0}
    assert scores(app, text_1=FIRST, text_2=TEXTS, **limits) == scores(app, text_1=FIRST, text_2=TEXTS)
    ranking = {"query": FIRST, "documents": TEXTS}
    assert app.post("/v1/rerank", {**ranking, **limits}).status_code == 200


def test_vectors_are_compared(served: Fixture) -> None:
    app = served("encoder")
    texts = [FIRST, *TEXTS]
    vectors = torch.tensor([item["embedding"] for item in app.answer("/v1/embeddings", {"input": texts})["data"]])
    expected = F.cosine_similarity(vectors[:1], vectors[1:]).tolist()
    assert scores(app, text_1=FIRST, text_2=TEXTS) == pytest.approx(expected, abs=1e-5)
    assert scores(app, text_1=FIRST, text_2=FIRST) == pytest.approx([1.0])
    pairs = F.cosine_similarity(vectors[:2], vectors[2:]).tolist()
    assert scores(app, text_1=texts[:2], text_2=texts[2:]) == pytest.approx(pairs, abs=1e-5)


def test_a_chat_model_is_asked(served: Fixture) -> None:
    app = served("decoder", is_embedding=False)
    ranked = app.answer("/v1/rerank", {"query": "panda", "documents": ["hi", "the giant panda"]})
    expected = [entry["score"] for entry in sorted(ranked, key=lambda entry: entry["index"])]
    assert scores(app, text_1="panda", text_2=["hi", "the giant panda"]) == pytest.approx(expected)


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
def test_the_answers_shape(path: str, served: Fixture, tiny: Fixture) -> None:
    app, model = served("bert-reranker"), tiny("bert-reranker")
    answer = app.answer(path, {"model": "m", "text_1": FIRST, "text_2": TEXTS, "rid": "mine"})
    assert (answer["id"], answer["object"], answer["model"]) == ("score-mine", "list", "m")
    assert set(answer) == {"id", "object", "created", "model", "data", "usage"}
    count = sum(len(model.tokens(FIRST, text)) for text in TEXTS)
    assert answer["usage"] == {"prompt_tokens": count, "completion_tokens": 0, "total_tokens": count}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "either query, items and label_token_ids, or text_1 and text_2"),
        ({"text_1": FIRST}, "this has text_1"),
        ({"text_1": FIRST, "text_2": TEXTS, "items": TEXTS}, "this has items, text_1, text_2"),
        ({"text_1": TEXTS, "text_2": FIRST}, "text_1 has 3 entries for the 1 of text_2"),
        ({"text_1": TEXTS[:2], "text_2": TEXTS}, "text_1 has 2 entries for the 3 of text_2"),
        ({"text_1": FIRST, "text_2": []}, "text_2"),
        ({"text_1": FIRST, "text_2": ["hi", " "]}, "text_2 has a text that is empty"),
        ({"text_1": FIRST, "text_2": [[1]]}, "text_2"),
        ({"text_1": FIRST, "text_2": ["hi", "panda " * 60]}, "text_2[1]: The input ("),
        ({"query": FIRST, "items": TEXTS, "label_token_ids": [1]}, "send text_1 and text_2"),
    ],
)
def test_refusals(served: Fixture, body: dict[str, Any], text: str) -> None:
    app = served("bert-reranker")
    assert text in app.refusal("/v1/score", body)["message"]
    assert app.is_whole()


def test_too_many_texts_are_refused(served: Fixture) -> None:
    app = served("encoder", max_sequences_per_request=3)
    assert len(scores(app, text_1="hi", text_2=["hi", "bad"])) == 2
    assert "4 sequences" in app.refusal("/v1/score", {"text_1": "hi", "text_2": TEXTS})["message"]


def test_several_labels_are_no_score(served: Fixture) -> None:
    assert "3 scores" in served("labels").refusal("/v1/score", {"text_1": FIRST, "text_2": TEXTS})["message"]
