"""Third-party clients work with a real server."""

from __future__ import annotations

import math
from typing import Any

import pytest

PARIS = "The capital of France is Paris."


def similarity(left: list[float], right: list[float]) -> float:
    """Return the cosine similarity of two embeddings."""
    assert len(left) == len(right) == 384
    norms = math.hypot(*left) * math.hypot(*right)
    return sum(value * other for value, other in zip(left, right, strict=True)) / norms


def check_meanings(vectors: list[list[float]]) -> None:
    """Check that the first two sentences are more similar than the first and the third."""
    first, second, third = vectors
    assert similarity(first, second) > 0.5 > similarity(first, third)


def test_langchain_chat(programs: Any, server: Any) -> None:
    report = programs.python("langchain_chat", server.url, needs="langchain_openai")
    assert report["invoke"] == report["async"] == "".join(report["stream"]) == PARIS
    assert report["batch"][0] == PARIS and "Tokyo" in report["batch"][1]
    assert "Paris" in report["turns"]
    assert report["stop"] == "The capital of France is "
    assert len([piece for piece in report["stream"] if piece]) > 3
    assert report["reason"] == "stop"
    usage = report["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (15, 8, 23)


def test_langchain_embeddings(programs: Any, encoder: Any) -> None:
    report = programs.python("langchain_embeddings", encoder.url, needs="langchain_openai")
    check_meanings(report["documents"])
    assert report["query"] == pytest.approx(report["documents"][0], abs=1e-5)


def test_litellm(programs: Any, server: Any) -> None:
    report = programs.python("litellm_calls", server.url, needs="litellm")
    assert report["text"] == report["async"] == "".join(piece or "" for piece in report["pieces"]) == PARIS
    assert (report["reason"], report["usage"]) == ("stop", [15, 8, 23])
    assert report["refusal"].startswith("400") and "temperature" in report["refusal"]
    assert report["completion_tokens"] == 4


def test_litellm_embedding(programs: Any, encoder: Any) -> None:
    report = programs.python("litellm_embedding", encoder.url, needs="litellm")
    check_meanings(report["documents"])
    assert report["tokens"] > 15


def test_instructor(programs: Any, server: Any) -> None:
    city = programs.python("instructor_models", server.url, needs="instructor")["schema"]
    assert city.keys() == {"name", "country", "millions"}
    assert city["country"] in ("France", "Japan") and city["name"]


def test_rerankers(programs: Any, reranker: Any) -> None:
    report = programs.python("rerankers", reranker.url, needs="cohere")
    texts = {name: [text for text, _ in ranking] for name, ranking in report.items()}
    scores = {name: [score for _, score in ranking] for name, ranking in report.items()}
    assert len(texts["cohere"]) == 2 and scores["cohere"] == sorted(scores["cohere"], reverse=True)
    for name in ("cohere-v1", "jina"):
        assert texts[name] == texts["cohere"]
        assert scores[name] == pytest.approx(scores["cohere"])  # batches of pairs may differ, and so does rounding


def test_documents_with_requests(programs: Any, server: Any) -> None:
    report = programs.python("requests_documents", server.url, needs="requests")
    assert "Paris" in report["chat"]["choices"][0]["message"]["content"]
    assert report["chat"]["model"] == "demo"
    assert report["generate"]["text"] and report["generate"]["meta_info"]["completion_tokens"] > 0
    assert report["streamed"] == report["whole"] != ""
    assert report["model_info"]["is_generation"] is True
    assert report["server_info"]["model_path"] == report["model_info"]["model_path"]
    assert report["health"] == [200, 200]
    assert report["flush"].startswith("Cache flushed.")
    assert report["text"] == "What is the capital of France?"
    assert report["update"]["success"] is False and report["update"]["message"]
    assert (report["experts"], report["refused"]) == (400, 400)


def test_embedding_documents_with_requests(programs: Any, encoder: Any) -> None:
    report = programs.python("requests_embedding", encoder.url, needs="requests")
    assert report["native"] == pytest.approx(report["openai"], abs=1e-5)
    assert len(report["native"]) == 384


def test_node(programs: Any, server: Any) -> None:
    report = programs.node("openai_node", server.url, needs="openai")
    assert report["text"] == "".join(report["pieces"]) == PARIS
    assert (report["usage"], report["taken"], len(report["models"])) == (23, 5, 1)
    assert (report["bad"]["name"], report["bad"]["status"]) == ("BadRequestError", 400)
    assert "temperature" in report["bad"]["message"]
    assert (report["missing"]["name"], report["missing"]["status"]) == ("NotFoundError", 404)
    server.wait_whole()


def test_the_code_that_the_playground_shows(programs: Any, server: Any) -> None:
    report = programs.node("playground_code", server.url, needs="openai")
    assert report["chat"] == PARIS
    assert report["completion"] == " Paris"
    assert "tokens: [" in report["fetched"] and "count:" in report["fetched"]
