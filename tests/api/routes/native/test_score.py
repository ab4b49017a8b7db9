"""Tests of ``/v1/score`` with a generative model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from sglang_plug_api.protocol.score import QueryWithItems

QUERY = "The capital of"
ITEMS = [" France is", " Japan is", " Italy is"]
CITIES = [" Paris", " Tokyo", " Rome"]


@pytest.fixture(scope="module")
def labels(app: Any) -> list[int]:
    """The first token ids of the names of the cities."""
    return [app.engine.tokenizer.encode(city, special=False)[0] for city in CITIES]


def scores(app: Any, labels: list[int], **more: Any) -> list[list[float]]:
    body = {"model": "m", "query": QUERY, "items": ITEMS, "label_token_ids": labels, **more}
    return app.answer("/v1/score", body)["scores"]


def test_the_right_label_is_the_likeliest(app: Any, labels: list[int]) -> None:
    assert len(set(labels)) == 3
    rows = scores(app, labels)
    assert [row.index(max(row)) for row in rows] == [0, 1, 2]
    assert all(0 <= score <= 1 for row in rows for score in row)


def test_scores_are_the_next_tokens_probabilities(app: Any, labels: list[int]) -> None:
    for item, row in zip(ITEMS, scores(app, labels), strict=True):
        params = {"max_new_tokens": 1, "temperature": 0}
        body = {"text": QUERY + item, "sampling_params": params, "return_logprob": True, "token_ids_logprob": labels}
        (logprobs,) = app.answer("/generate", body)["meta_info"]["output_token_ids_logprobs"]
        assert row == pytest.approx([math.exp(logprob) for logprob, _, _ in logprobs], rel=1e-4)


def test_softmax_is_among_the_labels(app: Any, labels: list[int]) -> None:
    plain, shares = scores(app, labels), scores(app, labels, apply_softmax=True)
    for row, share in zip(plain, shares, strict=True):
        assert sum(share) == pytest.approx(1)
        assert share == pytest.approx([score / sum(row) for score in row], rel=1e-4)


@pytest.mark.parametrize("temperature", [1e-3, 0.5, 1.0, 2.0])
def test_a_temperature_flattens_or_sharpens_the_softmax(app: Any, labels: list[int], temperature: float) -> None:
    plain = scores(app, labels)
    shares = scores(app, labels, apply_softmax=True, temperature=temperature)
    for row, share in zip(plain, shares, strict=True):
        weights = [(score / max(row)) ** (1 / temperature) for score in row]
        assert share == pytest.approx([weight / sum(weights) for weight in weights], rel=1e-3)


def test_items_first(app: Any, labels: list[int]) -> None:
    swapped = app.answer(
        "/v1/score", {"query": ITEMS[0], "items": [QUERY], "label_token_ids": labels, "item_first": True}
    )["scores"]
    assert swapped[0] == pytest.approx(scores(app, labels)[0], rel=1e-4)


def test_token_ids(app: Any, labels: list[int]) -> None:
    tokenizer = app.engine.tokenizer
    query = tokenizer.encode(QUERY)
    items = [tokenizer.encode(item, special=False) for item in ITEMS]
    assert query + items[0] == tokenizer.encode(QUERY + ITEMS[0])
    by_ids = scores(app, labels, query=query, items=items)
    assert by_ids == [pytest.approx(row, rel=1e-4) for row in scores(app, labels)]


def test_the_answers_shape(app: Any, labels: list[int]) -> None:
    body = {"model": "m", "query": QUERY, "items": ITEMS[0], "label_token_ids": labels}
    answer = app.answer("/v1/score", body)
    count = len(app.engine.tokenizer.encode(QUERY + ITEMS[0]))
    assert set(answer) == {"scores", "object", "model", "usage"}
    assert (answer["object"], answer["model"], len(answer["scores"])) == ("scoring", "m", 1)
    assert answer["usage"] == {"prompt_tokens": count, "completion_tokens": 0, "total_tokens": count}
    assert app.is_whole()


def test_the_operators_sampling_does_not_change_scores(app: Any, apps: Callable[..., Any], labels: list[int]) -> None:
    params = '{"min_new_tokens": 5, "temperature": 2.0, "logit_bias": {"5": 50}}'
    assert scores(apps(preferred_sampling_params=params), labels) == [
        pytest.approx(row, rel=1e-4) for row in scores(app, labels)
    ]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"items": []}, "items"),
        ({"items": ""}, "items"),
        ({"items": [[1]]}, "both be text"),
        ({"query": [1]}, "both be text"),
        ({"query": None}, "query"),
        ({"label_token_ids": []}, "label_token_ids"),
        ({"label_token_ids": None}, "label_token_ids"),
        ({"label_token_ids": [-1]}, "label_token_ids"),
        ({"label_token_ids": [10**9]}, "label token id 1000000000"),
        ({"label_token_ids": [1] * 1025}, "label_token_ids"),
        ({"items": ["x"] * 1025}, "items has 1025 entries"),
        ({"items": ["x " * 5000]}, "longer than"),
        ({"query": [], "items": [[]]}, "no tokens"),
        ({"query": [10**9], "items": [[1]]}, "vocabulary"),
        ({"temperature": 0.5}, "temperature"),
        ({"temperature": 0, "apply_softmax": True}, "temperature"),
        ({"return_token_logprobs": True}, "return_token_logprobs"),
        ({"apply_softmax": "perhaps"}, "apply_softmax"),
    ],
)
def test_refusals(app: Any, labels: list[int], change: dict[str, Any], text: str) -> None:
    body = {"query": QUERY, "items": ITEMS, "label_token_ids": labels, **change}
    assert text in app.refusal("/v1/score", body)["message"]


def test_a_model_that_compares_no_texts_says_what_to_send(app: Any) -> None:
    message = app.refusal("/v1/score", {"text_1": "a", "text_2": ["b", "c"]})["message"]
    assert "query, items and label_token_ids" in message


def test_a_query_that_is_too_long_is_refused_with_its_first_item(app: Any, labels: list[int]) -> None:
    query = "The capital of France is Paris. " * 2000
    refused = app.post("/v1/score", {"query": query, "items": ["x"] * 500, "label_token_ids": labels})
    assert refused.status_code == 400 and "items[0]: The input" in refused.text
    many = app.post("/v1/score", {"query": QUERY, "items": ["x"] * 60_000, "label_token_ids": labels})
    assert many.status_code == 400 and "items has 60000 entries; the maximum is" in many.text


def test_a_long_query_is_cut_before_it_is_joined_with_items(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = list[int]()

    def joined(self: QueryWithItems, index: int) -> Any:
        prompt = join(self, index)
        lengths.append(len(prompt))
        return prompt

    join = QueryWithItems.__getitem__
    monkeypatch.setattr(QueryWithItems, "__getitem__", joined)
    body = {"query": [80] * 5000, "items": [[81], [82]], "label_token_ids": [1], "truncate_prompt_tokens": 5}
    assert len(app.answer("/v1/score", body)["scores"]) == 2
    assert set(lengths) == {6}


def test_a_query_for_many_items_is_limited(app: Any, labels: list[int]) -> None:
    body = {"query": "a" * 700_000, "items": ["b"] * 1000, "label_token_ids": labels, "truncate_prompt_tokens": 5}
    error = app.refusal("/v1/score", body)
    assert error["param"] == "query"
    assert "700000 characters for each of 1000 items, 700000000 together; the maximum is 67108864" in error["message"]
