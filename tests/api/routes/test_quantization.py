"""Tests of ``--quantization`` with the demo model: the reported format, and the error of log-probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sglang_plug import PluginOptions
from sglang_plug_api import Engine

pytestmark = pytest.mark.whole_engine

TEXTS = (
    "The capital of the United Kingdom is London. The capital of France is Paris.",
    "Write a short poem about the sea and the wind.",
)
GREEDY = {"temperature": 0.0, "max_new_tokens": 6}


def measured(**options: Any) -> tuple[list[float], str]:
    """Return log-probabilities of the tokens of two texts, and a greedy answer."""
    with Engine(device="cpu", max_total_tokens=2048, **options) as engine:
        answers = [engine.generate(text, GREEDY, return_logprob=True, logprob_start_len=0) for text in TEXTS]
        capital = engine.generate("The capital of France is", GREEDY)
    assert isinstance(capital, dict)
    logprobs = [triple[0] for answer in answers for triple in answer["meta_info"]["input_token_logprobs"][1:]]  # type: ignore[call-overload,index]
    return logprobs, capital["text"]


@pytest.fixture(scope="module")
def exact() -> list[float]:
    return measured(dtype="float32")[0]


@pytest.mark.parametrize(
    ("options", "mean", "maximum"),
    [
        ({"quantization": "none"}, 0.03, 0.2),
        ({"quantization": "int8"}, 0.04, 0.25),
        ({"quantization": "int8", "plugins": PluginOptions(settings={"int8": {"head": True}})}, 0.05, 0.3),
        ({"quantization": "fp8"}, 0.15, 0.8),
        ({"kv_cache_dtype": "fp8_e4m3"}, 0.06, 0.4),
        ({"kv_cache_dtype": "fp8_e5m2"}, 0.09, 0.5),
    ],
    ids=["none", "int8", "int8 with head", "fp8", "keys and values in e4m3", "in e5m2"],
)
def test_logprobs_stay_near_those_in_float32(
    options: dict[str, Any], mean: float, maximum: float, exact: list[float]
) -> None:
    actual, capital = measured(dtype="bfloat16", **options)
    off = [abs(value - other) for value, other in zip(actual, exact, strict=True)]
    assert sum(off) / len(off) < mean and max(off) < maximum, (sum(off) / len(off), max(off))
    assert "Paris" in capital


@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_server_info(name: str, apps: Callable[..., Any]) -> None:
    info = apps(quantization=name).get("/server_info").json()
    assert info["quantization"] == info["components"]["quantization"]["name"] == name
    assert info["components"]["quantization"]["reason"] == "named by the configuration"
    plain = apps().get("/server_info").json()
    assert plain["quantization"] is None and "quantization" not in plain["components"]
