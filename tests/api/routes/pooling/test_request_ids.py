"""Tests of the header ``X-Request-Id`` of answers of pooling tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Fixture = Callable[..., Any]
RERANK: dict[str, Any] = {"query": "panda", "documents": ["good", "bad"]}


@pytest.mark.parametrize(
    ("model", "path", "body", "prefix"),
    [
        ("bert-reranker", "/v1/rerank?format=jina", RERANK, "rerank-"),
        ("bert-reranker", "/v1/score", {"text_1": "hi", "text_2": "panda"}, "score-"),
        ("labels", "/v1/classify", {"input": "hi"}, "classify-"),
        ("encoder", "/encode", {"text": "hi"}, ""),
        ("encoder", "/encode", {"text": "hi", "rid": ""}, ""),
        ("labels", "/classify", {"text": "hi"}, ""),
    ],
)
def test_it_has_the_id_of_the_body(served: Fixture, model: str, path: str, body: Any, prefix: str) -> None:
    response = served(model).post(path, body)
    id = response.headers["x-request-id"]
    assert response.status_code == 200 and len(id) == 32
    assert f'"id":"{prefix}{id}"' in response.text


@pytest.mark.parametrize(
    ("model", "path", "body"),
    [
        ("encoder", "/v1/embeddings", {"input": ["hi", "panda"]}),
        ("encoder", "/encode", {"text": ["hi", "panda"]}),
        ("bert-reranker", "/v1/rerank?format=list", RERANK),
        ("bert-reranker", "/v1/rerank?format=tei", {"query": "panda", "texts": ["good"]}),
    ],
)
def test_it_has_the_id_of_the_request(served: Fixture, model: str, path: str, body: dict[str, Any]) -> None:
    assert served(model).post(path, {**body, "rid": "mine"}).headers["x-request-id"] == "mine"


def test_each_prompt_may_have_an_id_and_an_empty_one_is_none(served: Fixture) -> None:
    answer = served("encoder").post("/encode", {"text": ["hi", "panda", "bear"], "rid": ["", "x", ""]})
    ids = [result["meta_info"]["id"] for result in answer.json()]
    assert ids[1] == "x" and len(set(ids)) == 3 and all(ids)
    assert answer.headers["x-request-id"] == ids[0]
