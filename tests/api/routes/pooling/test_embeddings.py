"""Tests of ``/v1/embeddings``."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

TEXTS = ["what is a panda ?", "the giant panda", "once upon a time", "hi"]
Fixture = Callable[..., Any]
PATH = "/v1/embeddings"


def vectors(answer: Any) -> list[list[float]]:
    assert answer["object"] == "list" and [item["object"] for item in answer["data"]] == ["embedding"] * len(
        answer["data"]
    )
    assert [item["index"] for item in answer["data"]] == list(range(len(answer["data"])))
    return [item["embedding"] for item in answer["data"]]


@pytest.mark.parametrize(("name", "row"), [("encoder", 0), ("decoder", -1)])
def test_vectors_are_transformers(name: str, row: int, served: Fixture, tiny: Fixture) -> None:
    app, model = served(name), tiny(name)
    answer = app.answer(PATH, {"model": "any", "input": TEXTS, "user": "me"})
    for text, vector in zip(TEXTS, vectors(answer), strict=True):
        assert vector == pytest.approx(F.normalize(model.states(text)[row], dim=0).tolist(), abs=1e-5)
    tokens = sum(len(model.tokens(text)) for text in TEXTS)
    assert answer["model"] == "any"
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["total_tokens"]) == (tokens, tokens)
    assert app.is_whole()


def test_forms_of_input(served: Fixture, tiny: Fixture) -> None:
    app, model = served("encoder"), tiny("encoder")
    expected = vectors(app.answer(PATH, {"input": TEXTS}))
    (single,) = vectors(app.answer(PATH, {"input": TEXTS[0]}))
    (ids,) = vectors(app.answer(PATH, {"input": model.tokens(TEXTS[0])}))
    many = vectors(app.answer(PATH, {"input": [model.tokens(text) for text in TEXTS]}))
    assert single == pytest.approx(expected[0], abs=1e-6) and ids == pytest.approx(single, abs=1e-6)
    for vector, other in zip(many, expected, strict=True):
        assert vector == pytest.approx(other, abs=1e-6)


def test_base64_is_little_endian_float32(served: Fixture) -> None:
    app = served("encoder")
    (plain,) = vectors(app.answer(PATH, {"input": "hi"}))
    (packed,) = vectors(app.answer(PATH, {"input": "hi", "encoding_format": "base64"}))
    unpacked = torch.frombuffer(bytearray(base64.b64decode(packed)), dtype=torch.float32)  # this machine's order
    assert unpacked.tolist() == pytest.approx(plain, abs=1e-7)
    (unsaid,) = vectors(app.answer(PATH, {"input": "hi", "encoding_format": None, "dimensions": None, "user": None}))
    assert unsaid == pytest.approx(plain, abs=1e-7)
    assert base64.b64decode(packed)[:4] == torch.tensor(plain[0]).numpy().astype("<f4").tobytes()


def test_dimensions_cut_and_normalise(served: Fixture) -> None:
    app = served("encoder")
    (whole,) = vectors(app.answer(PATH, {"input": "hi"}))
    (cut,) = vectors(app.answer(PATH, {"input": "hi", "dimensions": 8}))
    length = math.sqrt(sum(value * value for value in whole[:8]))
    assert cut == pytest.approx([value / length for value in whole[:8]], abs=1e-6)
    (same,) = vectors(app.answer(PATH, {"input": "hi", "dimensions": len(whole)}))
    assert same == pytest.approx(whole, abs=1e-7)
    assert app.refusal(PATH, {"input": "hi", "dimensions": len(whole) + 1})["param"] == "dimensions"
    assert app.refusal(PATH, {"input": "hi", "dimensions": 0})["param"] == "dimensions"


@pytest.mark.parametrize("empty", ["", [], [""], ["hi", ""], [[]], [[5], []]])
def test_nothing_to_embed(empty: Any, served: Fixture) -> None:
    assert "empty" in served("encoder").refusal(PATH, {"input": empty})["message"]


@pytest.mark.parametrize("value", [None, 5, {"text": "hi"}, ["hi", 5], [5, "hi"], [[5], 5], [-1], [True]])
def test_what_is_no_input(value: Any, served: Fixture) -> None:
    served("encoder").refusal(PATH, {"input": value})


def test_a_long_text_is_named(served: Fixture) -> None:
    app = served("encoder")
    error = app.refusal(PATH, {"input": ["hi", "panda " * 60]})
    assert error["message"].startswith("input[1]: The input (62 tokens) is longer than the model's context length (40")
    assert app.refusal(PATH, {"input": "panda " * 60})["message"].startswith("The input (62 tokens)")
    assert app.refusal(PATH, {"input": [5, 10**6]})["message"].startswith("a token id in prompt")
    assert app.is_whole()


def test_the_number_of_texts_is_bounded(served: Fixture) -> None:
    app = served("encoder", max_sequences_per_request=3)
    assert len(vectors(app.answer(PATH, {"input": ["hi"] * 3}))) == 3
    assert "input has 4 entries; the maximum is 3" in app.refusal(PATH, {"input": ["hi"] * 4})["message"]


def test_unknown_format(served: Fixture) -> None:
    assert served("encoder").refusal(PATH, {"input": "hi", "encoding_format": "int8"})["param"] == "encoding_format"


def test_without_a_tokenizer(served: Fixture, tiny: Fixture) -> None:
    app = served("encoder", skip_tokenizer_init=True)
    assert "--skip-tokenizer-init" in app.refusal(PATH, {"input": "hi"})["message"]
    (vector,) = vectors(app.answer(PATH, {"input": tiny("encoder").tokens("hi")}))
    assert vector == pytest.approx(vectors(served("encoder").answer(PATH, {"input": "hi"}))[0], abs=1e-6)


def test_another_servers_model_is_refused(served: Fixture) -> None:
    app = served("encoder", strict_model_name=True)
    assert app.refusal(PATH, {"model": "other", "input": "hi"}, 404)["code"] == "model_not_found"


def test_a_generating_server_says_what_to_do(app: Any) -> None:
    assert (
        app.refusal("/classify", {"text": "hi"})["message"]
        == "this model does not support the task classify; its tasks: generate"
    )
    for path, body in ((PATH, {"input": "hi"}), ("/encode", {"text": "hi"})):
        message = app.refusal(path, body)["message"]
        assert message == (
            "This model does not appear to be an embedding model by default. "
            "Please add `--is-embedding` when launching the server or try another model."
        )


def test_an_embedding_server_does_not_generate(served: Fixture) -> None:
    app = served("decoder")
    assert app.get("/get_model_info").json()["is_generation"] is False
    refusal = app.refusal("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
    assert refusal["message"] == "this model does not support the task generate; its tasks: embed"
    assert app.get("/health_generate").status_code == 200
    assert (
        "this model does not support the task classify; its tasks: embed"
        in app.refusal("/v1/classify", {"input": "hi"})["message"]
    )
    assert (
        "this model does not support the task rerank"
        in app.refusal("/v1/rerank", {"query": "hi", "documents": ["hi"]})["message"]
    )


@pytest.mark.parametrize("name", ["encoder", "decoder", "reward", "xlm-reranker"])
def test_probes(name: str, served: Fixture) -> None:
    from sglang_plug_api.lifecycle.warm_up import warm_up

    app = served(name)
    app.run(warm_up(app.engine))
    assert app.get("/health_generate").status_code == 200
    assert app.is_whole()


def test_texts_are_cut(served: Fixture, tiny: Fixture) -> None:
    """Long texts are truncated, with -1 to the context length; the special tokens around a text stay."""
    app, model = served("encoder"), tiny("encoder")
    long, limit = "panda " * 100, app.info["context_length"]
    assert "longer than the model's context length" in app.refusal(PATH, {"input": long})["message"]
    answer = app.answer(PATH, {"input": [long, "hi"], "truncate_prompt_tokens": -1})
    assert answer["usage"]["prompt_tokens"] == limit + len(model.tokens("hi"))
    expected = F.normalize(model.states("panda " * (limit - 2))[0], dim=0).tolist()
    assert vectors(answer)[0] == pytest.approx(expected, abs=1e-5)
    text = "what is a panda ?"
    for side, kept in (("right", "what is"), ("left", "panda ?")):
        (cut,) = vectors(app.answer(PATH, {"input": text, "truncate_prompt_tokens": 4, "truncation_side": side}))
        assert cut == pytest.approx(F.normalize(model.states(kept)[0], dim=0).tolist(), abs=1e-5)
    ids = model.tokens(text)
    (by_ids,) = vectors(app.answer(PATH, {"input": ids, "truncate_prompt_tokens": 3}))
    (short,) = vectors(app.answer(PATH, {"input": ids[:3]}))
    assert by_ids == pytest.approx(short, abs=1e-6)
    (bare,) = vectors(app.answer(PATH, {"input": text, "add_special_tokens": False}))
    (inner,) = vectors(app.answer(PATH, {"input": ids[1:-1]}))
    assert bare == pytest.approx(inner, abs=1e-6)


def test_routes_that_generate_say_what_the_model_can_do(served: Fixture) -> None:
    app = served("encoder")
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    calls = {
        "/v1/chat/completions": chat,
        "/v1/completions": {"prompt": "x"},
        "/generate": {"text": "x"},
        "/v1/responses": {"input": "x"},
    }
    for path, body in calls.items():
        refusal = app.refusal(path, body)
        assert refusal["message"] == "this model does not support the task generate; its tasks: embed"
    assert app.get("/v1/responses/resp_x").status_code == 400
    assert "/v1/chat/completions" not in app.application.openapi()["paths"]
    assert app.refusal("/v1/none", {}, 404)["message"] == "there is no route '/v1/none'"


def test_more_inputs_than_the_queue_can_have(served: Fixture) -> None:
    app = served("encoder", max_running_requests=2, max_queued_requests=1)
    assert len(app.answer("/v1/embeddings", {"input": ["hi"] * 3})["data"]) == 3
    error = app.refusal("/v1/embeddings", {"input": ["hi"] * 4})
    assert error["param"] == "input" and "--max-queued-requests" in error["message"]
