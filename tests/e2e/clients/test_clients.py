"""Other people's clients get from a real server what they are made for."""

from __future__ import annotations

import math
from typing import Any

import pytest

PARIS = "The capital of France is Paris."


def similarity(left: list[float], right: list[float]) -> float:
    """Cosine."""
    assert len(left) == len(right) == 384
    norms = math.hypot(*left) * math.hypot(*right)
    return sum(one * other for one, other in zip(left, right, strict=True)) / norms


def check_meanings(vectors: list[list[float]]) -> None:
    """The first two sentences mean the same, the third something else."""
    first, second, third = vectors
    assert similarity(first, second) > 0.5 > similarity(first, third)


def test_langchain_chat(programs: Any, server: Any) -> None:
    found = programs.python("langchain_chat", server.url, needs="langchain_openai")
    assert found["invoke"] == found["async"] == "".join(found["stream"]) == PARIS
    assert found["batch"][0] == PARIS and "Tokyo" in found["batch"][1]
    assert "Paris" in found["turns"]
    assert found["stop"] == "The capital of France is "
    assert len([piece for piece in found["stream"] if piece]) > 3
    assert found["reason"] == "stop"
    usage = found["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (15, 8, 23)


def test_langchain_embeddings(programs: Any, encoder: Any) -> None:
    found = programs.python("langchain_embeddings", encoder.url, needs="langchain_openai")
    check_meanings(found["documents"])
    assert found["query"] == pytest.approx(found["documents"][0], abs=1e-5)


def test_litellm(programs: Any, server: Any) -> None:
    found = programs.python("litellm_calls", server.url, needs="litellm")
    assert found["text"] == found["async"] == "".join(piece or "" for piece in found["pieces"]) == PARIS
    assert (found["reason"], found["usage"]) == ("stop", [15, 8, 23])
    assert found["refusal"].startswith("400") and "temperature" in found["refusal"]
    assert found["completion_tokens"] == 4


def test_litellm_embedding(programs: Any, encoder: Any) -> None:
    found = programs.python("litellm_embedding", encoder.url, needs="litellm")
    check_meanings(found["documents"])
    assert found["tokens"] > 15


def test_instructor(programs: Any, server: Any) -> None:
    city = programs.python("instructor_models", server.url, needs="instructor")["schema"]
    assert city.keys() == {"name", "country", "millions"}
    assert city["country"] in ("France", "Japan") and city["name"]


def test_rerankers(programs: Any, reranker: Any) -> None:
    found = programs.python("rerankers", reranker.url, needs="cohere")
    scores = [score for _, score in found["cohere"]]
    assert len(scores) == 2 and scores == sorted(scores, reverse=True)
    assert [text for text, _ in found["cohere"]] == [text for text, _ in found["jina"]]
    assert found["cohere-v1"] == found["cohere"]
    assert scores == pytest.approx([score for _, score in found["jina"]])


def test_documents_with_requests(programs: Any, server: Any) -> None:
    found = programs.python("requests_documents", server.url, needs="requests")
    assert "Paris" in found["chat"]["choices"][0]["message"]["content"]
    assert found["chat"]["model"] == "demo"
    assert found["generate"]["text"] and found["generate"]["meta_info"]["completion_tokens"] > 0
    assert found["streamed"] == found["whole"] != ""
    assert found["model_info"]["is_generation"] is True
    assert found["server_info"]["model_path"] == found["model_info"]["model_path"]
    assert found["health"] == [200, 200]
    assert found["flush"].startswith("Cache flushed.")
    assert found["text"] == "What is the capital of France?"
    assert found["update"]["success"] is False and found["update"]["message"]
    assert (found["experts"], found["refused"]) == (400, 400)


def test_embedding_documents_with_requests(programs: Any, encoder: Any) -> None:
    found = programs.python("requests_embedding", encoder.url, needs="requests")
    assert found["native"] == pytest.approx(found["openai"], abs=1e-5)
    assert len(found["native"]) == 384


def test_node(programs: Any, server: Any) -> None:
    found = programs.node("openai_node", server.url, needs="openai")
    assert found["text"] == "".join(found["pieces"]) == PARIS
    assert (found["usage"], found["taken"], len(found["models"])) == (23, 5, 1)
    assert (found["bad"]["name"], found["bad"]["status"]) == ("BadRequestError", 400)
    assert "temperature" in found["bad"]["message"]
    assert (found["missing"]["name"], found["missing"]["status"]) == ("NotFoundError", 404)
    server.wait_whole()


def test_the_code_that_the_playground_shows(programs: Any, server: Any) -> None:
    found = programs.node("playground_code", server.url, needs="openai")
    assert found["chat"] == PARIS
    assert found["completion"] == " Paris"
    assert "tokens: [" in found["fetched"] and "count:" in found["fetched"]
