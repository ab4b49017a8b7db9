"""Tests of default sampling parameters, which operators set for fields that requests leave out."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_plug import ConfigError
from sglang_plug_api.text.default_sampling_params import default_sampling_params


@pytest.mark.parametrize(
    ("configured", "expected"),
    [
        ({"temperature": 0.2, "top_k": 20, "n": 2}, {"temperature": 0.2, "top_k": 20, "n": 2}),
        ({"temperature": "0.5"}, {"temperature": 0.5}),
        ({"max_new_tokens": 100_000}, {"max_new_tokens": 100_000}),
        ({"min_new_tokens": 5}, {"min_new_tokens": 5}),
        (
            {"stop": ["a"], "sampling_seed": 4, "logit_bias": {"4": 1}},
            {"stop": ["a"], "seed": 4, "logit_bias": {"4": 1}},
        ),
        ({"top_p": None}, {}),
    ],
)
def test_what_requests_may_say(configured: dict[str, Any], expected: dict[str, Any]) -> None:
    assert default_sampling_params(configured) == expected


@pytest.mark.parametrize(
    ("configured", "message"),
    [
        ({"temprature": 1}, "no native sampling parameter is named 'temprature'; did you mean 'temperature'?"),
        ({"max_tokens": 5}, "'max_tokens'; did you mean 'max_new_tokens'?"),
        ({"regex": "a+"}, "no native sampling parameter is named 'regex'"),
        ({"temperature": "a"}, "temperature: must be a valid number"),
        ({"temperature": -1}, "temperature: must be greater than or equal to 0"),
        ({"top_p": 2}, r"top_p must be in \(0, 1\], got 2"),
        ({"min_new_tokens": 5, "max_new_tokens": 4}, r"min_new_tokens must be at most max_new_tokens \(4\)"),
        ({"stop": ""}, "stop strings must not be empty"),
        ({"n": 0}, "n: must be greater than or equal to 1"),
    ],
)
def test_what_would_be_wrong_for_every_request_stops_the_start(configured: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        default_sampling_params(configured)
