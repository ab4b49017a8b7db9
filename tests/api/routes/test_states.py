"""Tests of ``input_embeds`` of ``/generate``: prompts of embeddings instead of tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

FRANCE = "The capital of France is"
PARAMS = {"temperature": 0, "max_new_tokens": 6}
WIDTH = 256
ZEROS = [0.0] * WIDTH


@pytest.fixture(scope="module")
def states_of(app: Any) -> Callable[[str], list[list[float]]]:
    """Return a function that computes the input embeddings of a text: ``states_of(text)``."""
    table = load_file(Path(app.info["model_path"]) / "model.safetensors")["model.embed_tokens.weight"].float()
    return lambda text: table[app.engine.tokenizer.encode(text)].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("chunk", [None, 3])
def test_states_are_answered_as_their_tokens_are(
    apps: Callable[..., Any], states_of: Callable[[str], list[list[float]]], chunk: int | None
) -> None:
    app = apps() if chunk is None else apps(chunked_prefill_size=chunk)
    options: dict[str, Any] = {"sampling_params": PARAMS, "return_logprob": True}
    by_text = app.answer("/generate", {"text": FRANCE, **options})
    by_states = app.answer("/generate", {"input_embeds": states_of(FRANCE), **options})
    assert by_states["output_ids"] == by_text["output_ids"]
    assert by_states["meta_info"]["prompt_tokens"] == by_text["meta_info"]["prompt_tokens"]
    assert [triple[0] for triple in by_states["meta_info"]["output_token_logprobs"]] == pytest.approx(
        [triple[0] for triple in by_text["meta_info"]["output_token_logprobs"]], abs=1e-4
    )
    assert app.is_whole()


def test_batches_and_streams(app: Any, states_of: Callable[[str], list[list[float]]]) -> None:
    embeds = [states_of(FRANCE), states_of("The capital of Japan is")]
    paris, tokyo = app.answer("/generate", {"input_embeds": embeds, "sampling_params": PARAMS})
    assert "Paris" in paris["text"] and "Tokyo" in tokyo["text"]
    streamed = app.post("/generate", {"input_embeds": embeds[0], "sampling_params": PARAMS, "stream": True})
    assert "Paris" in streamed.text and streamed.text.endswith("data: [DONE]\n\n")


def test_only_the_same_states_share_their_prefix(app: Any, states_of: Callable[[str], list[list[float]]]) -> None:
    def cached(embeds: list[list[float]]) -> int:
        body = {"input_embeds": embeds, "sampling_params": {"max_new_tokens": 1}}
        return int(app.answer("/generate", body)["meta_info"]["cached_tokens"])

    embeds = states_of("A prompt that nobody else sends as states")
    assert (cached(embeds), cached(embeds)) == (0, len(embeds) - 1)
    embeds[-1] = [value + 0.5 for value in embeds[-1]]
    assert cached(embeds) == 0


@pytest.mark.parametrize(
    ("fields", "words", "param"),
    [
        ({"input_embeds": [[0.5, 0.5]]}, "have 2 numbers per position; the model's hidden size is 256", "input_embeds"),
        ({"input_embeds": [ZEROS, [0.5]]}, "entry 1 has 1, the first has 256", "input_embeds"),
        ({"input_embeds": [[ZEROS], [[0.5]]]}, "have 1 numbers per position", "input_embeds"),
        ({"input_embeds": []}, "at least 1 item", "input_embeds"),
        ({"input_embeds": [[]]}, "at least 1 item", "input_embeds.0"),
        ({"input_embeds": [0.5]}, "valid array", "input_embeds.0"),
        ({"input_embeds": [[True]]}, "valid number", "input_embeds.0.0"),
        ({"input_embeds": [["1"]]}, "valid number", "input_embeds.0.0"),
        ({"input_embeds": [[1e300] * WIDTH]}, "beyond those of float32", "input_embeds"),
        ({"input_embeds": [ZEROS], "text": "x"}, "Either text, input_ids or input_embeds", "text"),
        ({"input_embeds": [ZEROS], "logprob_start_len": 0}, "has no tokens", "logprob_start_len"),
        ({"input_embeds": [ZEROS], "logprob_start_len": [0, 0]}, "2 entries for 1 prompts", "logprob_start_len"),
    ],
    ids=range(12),
)
def test_what_is_refused(app: Any, fields: dict[str, Any], words: str, param: str) -> None:
    error = app.refusal("/generate", fields)
    assert words in error["message"] and error["param"] == param
    assert app.is_whole()


def test_a_prompt_that_is_too_long(app: Any) -> None:
    error = app.refusal("/generate", {"input_embeds": [ZEROS] * 4097})
    assert error["code"] == "context_length_exceeded" and app.is_whole()
