"""Outputs with a float8 KV pool are close to those with the model's dtype, and do not depend on scheduling."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import EngineConfig, LogprobOptions, Request, SamplingParams
from sglang_plug.config import BackendOptions, CacheOptions, ModelOptions, ScheduleOptions

FLOAT8 = {"fp8_e4m3": 0.2, "fp8_e5m2": 0.45}
"""Tolerated mean error of the log-probabilities of prompt tokens, which is larger with random weights."""
NEW_TOKENS = 24


def config(path: Path, kv_dtype: str, *, chunk: int = 8192, pool: int = 4096, cache: str = "auto") -> EngineConfig:
    return EngineConfig(
        model=ModelOptions(path=str(path), device="cpu", dtype="float32"),
        cache=CacheOptions(kv_dtype=kv_dtype, max_total_tokens=pool, prefix_cache=cache),
        schedule=ScheduleOptions(chunked_prefill_size=chunk, max_running_requests=16),
        backends=BackendOptions(attention="torch", grammar="none"),
    )


def requests(name: str, *, logprobs: bool = False) -> list[Request]:
    draw = random.Random(3)
    shared = [draw.randrange(3, 512) for _ in range(50)]
    own = [[draw.randrange(3, 512) for _ in range(length)] for length in (1, 2, 17, 40)]
    params = SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0.0)
    options = LogprobOptions(start=0) if logprobs else None
    return [
        Request(id=f"{name}{index}", tokens=tuple(tokens), params=params, logprobs=options)
        for index, tokens in enumerate([*own, shared + own[2], shared[:30], shared])
    ]


@pytest.mark.parametrize("kv_dtype", sorted(FLOAT8))
def test_log_probabilities_are_near(kv_dtype: str, tiny_model: Callable[..., Any], serve: Callable[..., Any]) -> None:
    path = tiny_model("llama-3.2-1b").path
    exact, near = (serve(config(path, dtype)).outputs(requests("a", logprobs=True)) for dtype in ("auto", kv_dtype))
    pairs = [
        (mine.logprob, theirs.logprob)
        for left, right in zip(near, exact, strict=True)
        for mine, theirs in zip(left.prompt_logprobs, right.prompt_logprobs, strict=True)
        if theirs.logprob is not None
    ]
    error = sum(abs(mine - theirs) for mine, theirs in pairs) / len(pairs)
    assert len(pairs) > 100 and 0.001 < error < FLOAT8[kv_dtype], error


@pytest.mark.parametrize("family", ["llama-3.2-1b", "gemma-2-2b", "deepseek-v2-lite"])
def test_tokens_do_not_depend_on_chunks_or_the_cache_or_retraction(
    family: str, tiny_model: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    path = tiny_model(family).path
    whole = serve(config(path, "fp8_e4m3", cache="none"))
    expected = [output.tokens for output in whole.outputs(requests("a"))]
    assert len(set(expected)) > 4, "outputs that do not differ prove nothing"
    chunked = serve(config(path, "fp8_e4m3", chunk=16))
    for name in ("b", "c"):
        outputs = chunked.outputs(requests(name))
        assert [output.tokens for output in outputs] == expected
    assert sum(output.cached_tokens for output in outputs) > 60
    narrow = serve(config(path, "fp8_e4m3", pool=110))
    outputs = narrow.outputs(requests("d"))
    assert [output.tokens for output in outputs] == expected
    assert sum(output.retractions for output in outputs) > 0


def test_the_server_tells_it(tiny_model: Callable[..., Any], serve: Callable[..., Any]) -> None:
    path = tiny_model("llama-3.2-1b").path
    assert serve(config(path, "fp8_e5m2")).info["kv_cache_dtype"] == "fp8_e5m2"
    assert serve(config(path, "auto")).info["kv_cache_dtype"] == "float32"
