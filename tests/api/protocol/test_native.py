"""Tests of the validation of bodies of ``/generate``."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sglang_plug_api.protocol.native import GenerateBody, SamplingBody


def body(**fields: Any) -> GenerateBody:
    return GenerateBody.model_validate(fields)


@pytest.mark.parametrize(
    ("fields", "batch", "inputs"),
    [
        ({"text": "a"}, False, ["a"]),
        ({"text": ["a"]}, True, ["a"]),
        ({"text": ["a", "b"]}, True, ["a", "b"]),
        ({"input_ids": [1, 2]}, False, [[1, 2]]),
        ({"input_ids": [[1], [2, 3]]}, True, [[1], [2, 3]]),
    ],
)
def test_one_or_many(fields: Any, batch: bool, inputs: list[Any]) -> None:
    request = body(**fields)
    assert (request.is_batch, request.size, request.inputs()) == (batch, len(inputs), inputs)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "Either text, input_ids or input_embeds should be provided."),
        ({"text": "a", "input_ids": [1]}, "Either text, input_ids or input_embeds should be provided."),
        ({"input_ids": []}, "input_ids cannot be empty."),
        ({"input_ids": [[1], []]}, "input_ids cannot be empty."),
        ({"text": ""}, "text cannot be empty."),
        ({"text": ["a", ""]}, "text cannot be empty."),
        ({"text": "a", "top_logprobs_num": [1025]}, "must be between 0 and 1024"),
    ],
)
def test_what_is_refused(fields: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        body(**fields)
    assert message in str(caught.value)


def test_a_value_or_one_for_each() -> None:
    request = body(text=["a", "b"], return_logprob=True, top_logprobs_num=[1, 2], token_ids_logprob=[3, 4])
    assert request.each("return_logprob") == [True, True]
    assert request.each("top_logprobs_num") == [1, 2]
    assert request.each("token_ids_logprob") == [[3, 4], [3, 4]]
    assert body(text=["a", "b"], token_ids_logprob=[[3], [4]]).each("token_ids_logprob") == [[3], [4]]
    with pytest.raises(ValueError, match="top_logprobs_num has 1 entries for 2 prompts"):
        body(text=["a", "b"], top_logprobs_num=[1]).each("top_logprobs_num")


def test_only_what_was_given_is_passed_on() -> None:
    assert SamplingBody().sampling() == {}
    fields = {"temperature": 0, "stop": ["a"], "n": 2}
    assert SamplingBody.model_validate(fields).sampling() == fields
    assert SamplingBody.model_validate({"sampling_seed": 3}).sampling() == {"seed": 3}
    assert SamplingBody.model_validate({"seed": 1, "sampling_seed": 3}).sampling()["seed"] == 1
