"""Tests of sampling parameters: the defaults of omitted fields, and the values that are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.options.config import ServerConfig
from sglang_plug_api.text.sampling import Sampling, SamplingDefaults

INFO: dict[str, Any] = {
    "generation": {"temperature": 0.5, "top_k": 30, "top_p": None, "max_length": 9},
    "eos_token_ids": [7, 8],
    "context_length": 100,
    "max_total_tokens": 60,
    "vocab_size": 5000,
}


def defaults(**options: Any) -> SamplingDefaults:
    return SamplingDefaults(ServerConfig(**options), INFO, (8, 9))


def complete(fields: dict[str, Any], prompt: int = 10, new: int | None = 16, **options: Any) -> Sampling:
    return defaults(**options).complete(fields, prompt, new)


@pytest.mark.parametrize(("fields", "expected"), [({}, 5), ({"max_new_tokens": 2}, 2), ({"min_new_tokens": 1}, 1)])
def test_a_default_minimum_is_at_most_the_length_of_the_output(fields: dict[str, Any], expected: int) -> None:
    params = complete(fields, preferred_sampling_params={"min_new_tokens": 5}).params
    assert params.min_new_tokens == expected


@pytest.mark.parametrize("fields", [{}, {"max_new_tokens": None}])
def test_a_default_maximum_is_cut_to_what_fits(fields: dict[str, Any]) -> None:
    options = {"preferred_sampling_params": {"max_new_tokens": 3000}}
    assert complete(fields, prompt=50, **options).params.max_new_tokens == 10
    with pytest.raises(ApiError, match="100"):
        complete({"max_new_tokens": 3000}, prompt=50, **options)


def test_a_minimum_of_the_request_above_its_maximum_is_refused() -> None:
    with pytest.raises(ApiError, match=r"min_new_tokens must be at most max_new_tokens \(2\), got 3"):
        complete({"max_new_tokens": 2, "min_new_tokens": 3})


def test_the_request_comes_first_then_the_operator_then_the_checkpoint_then_ours() -> None:
    params = complete({"temperature": 0.1}, preferred_sampling_params={"temperature": 0.2, "min_p": 0.3}).params
    assert (params.temperature, params.min_p, params.top_k, params.top_p) == (0.1, 0.3, 30, 1.0)
    assert complete({}, preferred_sampling_params={"temperature": 0.2}).params.temperature == 0.2
    assert complete({}).params.temperature == 0.5
    openai = complete({}, sampling_defaults="openai").params
    assert (openai.temperature, openai.top_k) == (1.0, -1)


def test_new_tokens() -> None:
    assert complete({}).params.max_new_tokens == 16
    assert complete({"max_new_tokens": 3}).params.max_new_tokens == 3
    assert complete({}, new=None).params.max_new_tokens == 50  # all that fit the pool
    assert complete({}, prompt=55).params.max_new_tokens == 5  # a default is cut
    assert complete({}, prompt=90).params.max_new_tokens == 0  # the engine will refuse the prompt, with its reason
    assert complete({"max_new_tokens": 90}).params.max_new_tokens == 90


def test_more_than_the_context_is_refused_with_all_numbers() -> None:
    with pytest.raises(ApiError) as caught:
        complete({"max_new_tokens": 91})
    for text in ("context length of 100 tokens", "total of 101 tokens", "10 tokens from the input", "91 tokens for"):
        assert text in caught.value.message
    assert (caught.value.param, caught.value.code) == ("max_tokens", "context_length_exceeded")


@pytest.mark.parametrize("prompt", [100, 101])
def test_a_prompt_without_room_for_an_answer_has_a_code_that_clients_know(prompt: int) -> None:
    with pytest.raises(ApiError, match=rf"The input \({prompt} tokens\) is longer than .* \(100 tokens\)") as caught:
        complete({}, prompt=prompt)
    assert caught.value.code == "context_length_exceeded"


def test_tokens_that_are_not_there_are_named_with_their_field() -> None:
    assert complete({"stop_token_ids": [0, 4999]}).params.stop_token_ids[:2] == (0, 4999)
    for fields in ({"stop_token_ids": [1, 5000]}, {"stop_token_ids": [-1]}, {"logit_bias": {"5000": 1}}):
        with pytest.raises(ApiError, match="not in the vocabulary of 5000 tokens") as caught:
            complete(fields)
        assert caught.value.param == next(iter(fields))


def test_the_operators_limit_on_new_tokens_counts_as_explicit() -> None:
    assert complete({}, new=None, preferred_sampling_params={"max_new_tokens": 4}).params.max_new_tokens == 4


def test_end_tokens() -> None:
    assert complete({}).params.stop_token_ids == (7, 8, 9)
    assert complete({"stop_token_ids": [5, 8]}).params.stop_token_ids == (5, 8, 7, 9)
    assert complete({"stop_token_ids": [5], "ignore_eos": True}).params.stop_token_ids == (5,)
    assert complete({"ignore_eos": True}).params.stop_token_ids == ()


def test_stop_strings() -> None:
    assert complete({"stop": "x"}).stops == ("x",)
    assert complete({"stop": ["x", "y"]}).stops == ("x", "y")
    assert complete({"stop": None}).stops == complete({"stop": []}).stops == ()
    assert len(complete({"stop": ["x"] * 32}).stops) == 32


@pytest.mark.parametrize("stop", ["", [""], ["x", ""], ["x"] * 33, "x" * 1025])
def test_stop_strings_that_are_refused(stop: Any) -> None:
    with pytest.raises(ApiError) as caught:
        complete({"stop": stop})
    assert (caught.value.status, caught.value.param) == (400, "stop")


def test_repeated_stop_tokens_count_once() -> None:
    assert complete({"stop_token_ids": [5, 6, 5] * 400, "ignore_eos": True}).params.stop_token_ids == (5, 6)
    with pytest.raises(ApiError, match="at most 256 stop_token_ids are allowed, got 300"):
        complete({"stop_token_ids": [*range(300)] * 2, "ignore_eos": True})


def test_prompts_of_one_request_share_what_does_not_depend_on_their_lengths() -> None:
    of_request = defaults().of_request({"stop_regex": "a+", "logit_bias": {"5": 1}})
    short, shorter, long = (of_request.for_prompt(length, 16) for length in (10, 3, 55))
    assert short is shorter
    assert (short.params.max_new_tokens, long.params.max_new_tokens) == (16, 5)
    assert short.stop_patterns is long.stop_patterns
    assert short == replace(long, params=replace(long.params, max_new_tokens=16))
    with pytest.raises(ApiError, match=r"The input \(100 tokens\) is longer"):
        of_request.for_prompt(100, 16)


def test_what_concerns_text() -> None:
    sampling = complete({"no_stop_trim": True, "skip_special_tokens": False, "n": 3})
    assert (sampling.keep_stop, sampling.skip_special, sampling.n) == (True, False, 3)
    plain = complete({})
    assert (plain.keep_stop, plain.skip_special, plain.n) == (False, True, 1)


def test_biases() -> None:
    assert complete({"logit_bias": {"5": 1, "6": -2.5}}).params.logit_bias == {5: 1.0, 6: -2.5}
    for bias in ({"x": 1}, {"-1": 1}, {"5000": 1}, {str(1 << 63): 1}, {str(token): 1 for token in range(4097)}):
        with pytest.raises(ApiError) as caught:
            complete({"logit_bias": bias})
        assert caught.value.param == "logit_bias"


@pytest.mark.parametrize("seed", [1 << 63, -(1 << 63) - 1])
def test_seeds_beyond_64_bits(seed: int) -> None:
    with pytest.raises(ApiError, match="seed must fit 64 bits"):
        complete({"seed": seed})
    edge = complete({"seed": (1 << 63) - 1}).params.seed
    assert edge == (1 << 63) - 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": True}, "top_p"),
        ({"max_new_tokens": True}, "max_new_tokens"),
        ({"max_new_tokens": 1.5}, "max_new_tokens"),
        ({"top_k": "5"}, "top_k"),
        ({"stop_token_ids": [True]}, "stop_token_ids"),
        ({"stop_token_ids": [*range(257)]}, "stop_token_ids"),
        ({"min_new_tokens": 17}, "min_new_tokens"),
        ({"temperature": float("nan")}, "temperature"),
    ],
)
def test_what_the_engine_would_refuse_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        complete(fields)
    assert (caught.value.status, caught.value.param) == (400, param)
