"""Tests of ``/classify`` and ``/v1/classify``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

Fixture = Callable[..., Any]
TEXTS = ["the panda is good", "bad", "hi"]


def test_rewards_as_in_the_documents(served: Fixture, tiny: Fixture) -> None:
    app, model = served("reward"), tiny("reward")
    prompt = "What is a panda?"
    conversations = [
        [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
        for answer in ("The giant bear lives in China", "bad")
    ]
    prompts = model.tokenizer.apply_chat_template(conversations, tokenize=False)
    responses = app.answer("/classify", {"model": "any/name", "text": prompts})
    assert len(responses) == 2
    for response, text in zip(responses, prompts, strict=True):
        assert response["embedding"][0] == pytest.approx(model.logits(text)[0], abs=1e-5)
        assert response["meta_info"]["prompt_tokens"] == len(model.tokens(text))
    assert responses[0]["embedding"] != responses[1]["embedding"]
    single = app.answer("/classify", {"text": prompts[0]})
    assert single["embedding"] == pytest.approx(responses[0]["embedding"], abs=1e-5)


def test_labels(served: Fixture, tiny: Fixture) -> None:
    app, model = served("labels"), tiny("labels")
    answer = app.answer("/v1/classify", {"model": "m", "input": TEXTS})
    assert answer["object"] == "list" and answer["id"].startswith("classify-") and answer["model"] == "m"
    for index, (text, result) in enumerate(zip(TEXTS, answer["data"], strict=True)):
        expected = torch.tensor(model.logits(text)).softmax(0)
        assert result["index"] == index and result["num_classes"] == 3
        assert result["probs"] == pytest.approx(expected.tolist(), abs=1e-5)
        assert result["label"] == ["good", "bad", "so so"][int(expected.argmax())]
    tokens = sum(len(model.tokens(text)) for text in TEXTS)
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] == tokens


def test_labels_that_do_not_exclude_each_other(served: Fixture, tiny: Fixture) -> None:
    (result,) = served("flags").answer("/v1/classify", {"input": "hi"})["data"]
    assert result["probs"] == pytest.approx(torch.tensor(tiny("flags").logits("hi")).sigmoid().tolist(), abs=1e-5)
    assert result["label"] == f"LABEL_{result['probs'].index(max(result['probs']))}"


def test_a_single_score_is_a_probability(served: Fixture, tiny: Fixture) -> None:
    (result,) = served("reward").answer("/v1/classify", {"input": tiny("reward").tokens("hi")})["data"]
    assert result["probs"] == pytest.approx(torch.tensor(tiny("reward").logits("hi")).sigmoid().tolist(), abs=1e-5)
    assert result["num_classes"] == 1


def test_a_classifier_makes_no_embeddings(served: Fixture) -> None:
    message = served("reward").refusal("/v1/embeddings", {"input": "hi"})["message"]
    assert message == "this model does not support the task embed; its tasks: classify"


@pytest.mark.parametrize("empty", ["", [], ["hi", ""]])
def test_nothing_to_classify(empty: Any, served: Fixture) -> None:
    assert "empty" in served("labels").refusal("/v1/classify", {"input": empty})["message"]
