"""Tests of ``/generate``."""

from __future__ import annotations

from typing import Any

import pytest

BODY = {"text": "The capital of France is", "sampling_params": {"temperature": 0, "max_new_tokens": 4}}


def test_post_and_put(app: Any) -> None:
    assert app.answer("/generate", BODY)["text"].startswith(" Paris")
    assert app.run(app.client.put("/generate", json=BODY)).json()["text"].startswith(" Paris")


def test_stream(app: Any) -> None:
    response = app.post("/generate", {**BODY, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
def test_the_header_has_the_id_of_the_body(app: Any, stream: bool) -> None:
    response = app.post("/generate", {**BODY, "stream": stream})
    assert f'"id":"{response.headers["x-request-id"]}"' in response.text
    response = app.post("/generate", {**BODY, "stream": stream, "rid": "a b"})
    assert response.headers["x-request-id"] == "a%20b"
    response = app.post("/generate", {**BODY, "text": ["One", "Two"], "stream": stream})
    assert all(f'"id":"{response.headers["x-request-id"]}-{index}"' in response.text for index in range(2))
    response = app.post("/generate", {**BODY, "text": ["One", "Two"], "stream": stream, "rid": ["x", "y"]})
    assert response.headers["x-request-id"] == "x"


def test_what_the_engine_refuses_is_a_status_and_no_event(app: Any) -> None:
    for stream in (False, True):
        error = app.refusal("/generate", {"input_ids": [99999], "stream": stream})
        assert "not in the vocabulary" in error["message"]
    assert app.is_whole()


def tokens_and_logprobs(entries: Any) -> Any:
    """Return token and log-probability of each entry at the only position, with a tolerance for rounding."""
    (triples,) = entries
    return [(token, pytest.approx(logprob, abs=1e-4)) for logprob, token, _ in triples]


def test_without_new_tokens_the_likeliest_next_tokens_are_told(app: Any) -> None:
    """``max_new_tokens=0`` returns the log-probabilities of the next token, for scoring, but no output token."""
    fields = {"return_logprob": True, "top_logprobs_num": 3, "token_ids_logprob": [5, 6]}
    generated = app.answer("/generate", {**BODY, **fields, "return_prompt_token_ids": True})["meta_info"]
    for more in ({}, {"regex": "x"}, {"n": 2}, {"stop": "Paris"}, {"ignore_eos": True}):
        answer = app.answer("/generate", {**BODY, **fields, "sampling_params": {"max_new_tokens": 0, **more}})
        for output in answer if isinstance(answer, list) else [answer]:
            meta = output["meta_info"]
            assert (output["text"], output["output_ids"], meta["completion_tokens"]) == ("", [], 0)
            assert meta["finish_reason"] == {"type": "length", "length": 0}
            assert (meta["output_token_logprobs"], meta["output_token_logprobs_length"]) == ([], 0)
            for name in ("output_top_logprobs", "output_token_ids_logprobs"):
                assert tokens_and_logprobs(meta[name]) == tokens_and_logprobs(generated[name][:1])
    assert generated["output_token_logprobs_length"] == len(generated["output_token_logprobs"]) == 4
    assert generated["prompt_token_ids"] == app.answer("/tokenize", {"prompt": BODY["text"]})["tokens"]
    plain = app.answer("/generate", {**BODY, "return_logprob": True, "sampling_params": {"max_new_tokens": 0}})
    assert "output_top_logprobs" not in plain["meta_info"] and plain["meta_info"]["output_token_logprobs"] == []
    events = app.post("/generate", {**BODY, **fields, "sampling_params": {"max_new_tokens": 0}, "stream": True}).text
    assert events.count("data: {") == 1 and '"output_ids":[]' in events and '"output_top_logprobs":[[[' in events
    assert app.is_whole()


def test_a_list_of_lists_of_tokens_is_for_several_prompts(app: Any) -> None:
    single = {**BODY, "return_logprob": True, "token_ids_logprob": [[5, 6]]}
    assert "there is one prompt" in app.refusal("/generate", single)["message"]
    batch = app.answer("/generate", {**single, "text": [BODY["text"]]})
    assert [len(ids) for ids in batch[0]["meta_info"]["output_token_ids_logprobs"]] == [2] * 4


def test_log_probabilities_of_prompts_are_limited(app: Any) -> None:
    params = {"max_new_tokens": 1, "temperature": 0.0, "n": 8}
    body = {"input_ids": [40] * 1000, "sampling_params": params, "return_logprob": True, "top_logprobs_num": 1000}
    assert app.post("/generate", body).status_code == 200
    refused = app.post("/generate", {**body, "logprob_start_len": 0})
    assert refused.status_code == 400
    assert "the request asks for 8000000 log-probabilities of alternatives" in refused.text
