"""``/generate``."""

from __future__ import annotations

from typing import Any

BODY = {"text": "The capital of France is", "sampling_params": {"temperature": 0, "max_new_tokens": 4}}


def test_post_and_put(app: Any) -> None:
    assert app.answer("/generate", BODY)["text"].startswith(" Paris")
    assert app.run(app.client.put("/generate", json=BODY)).json()["text"].startswith(" Paris")


def test_stream(app: Any) -> None:
    response = app.post("/generate", {**BODY, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("data: [DONE]\n\n")


def test_what_the_engine_refuses_is_a_status_and_no_event(app: Any) -> None:
    for stream in (False, True):
        error = app.refusal("/generate", {"input_ids": [99999], "stream": stream})
        assert "not in the vocabulary" in error["message"]
    assert app.is_whole()
