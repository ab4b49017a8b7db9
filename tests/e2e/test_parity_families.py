"""Served outputs of every family equal transformers, with a plugin or through transformers' modeling code."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from sglang_plug import EngineConfig, LogprobOptions, Request, SamplingParams
from sglang_plug.config import BackendOptions, CacheOptions, ModelOptions, ScheduleOptions

FAMILIES = ["gemma-2-2b", "gemma-3-1b", "phi-3-mini", "phi-4-mini", "olmo-2-1b", "gpt2", "falcon-7b"]
FAMILIES += ["deepseek-v2-lite", "deepseek-v2", "deepseek-v3"]
FAMILIES += ["bloom-560m", "gpt-j-6b", "gpt-neo-125m"]
FAMILIES += ["qwen3-next", "qwen3.5"]
FAMILIES += ["granite-4-tiny", "nemotron-3-nano", "falcon-h1", "jamba", "lfm2-1.2b", "lfm2-8b-a1b"]
FAMILIES += ["mamba-130m", "mamba-2-130m", "kimi-linear", "minimax-text-01", "olmo-hybrid"]
FAMILIES += ["recurrent-gemma-2b"]
FAMILIES += ["granite-3-2b", "command-r", "gpt-oss-20b", "glm-4-9b", "glm-4.5-air", "llama-4-scout"]
FALLBACK = ["starcoder2-3b", "stablelm-2", "gemma-4-e2b"]
"""Architectures without a plugin, which run through transformers' modeling code."""
CLOSE = 1e-4
LESS_CLOSE = {"qwen3-next": 1e-3, "qwen3.5": 1e-3}
"""Families with larger tolerances: they normalise small numbers, and transformers itself differs from its float64."""
NEW_TOKENS = 12
LONG_RUN = 20


def prompts() -> list[list[int]]:
    """Return prompts of mixed lengths, some of which share long prefixes."""
    draw = random.Random(3)
    shared = [draw.randrange(3, 512) for _ in range(60)]
    own = [[draw.randrange(3, 512) for _ in range(length)] for length in (1, 17, 90)]
    return [*own, shared + own[1], shared[:40], [*shared]]


def config(path: Any, *, pool: int = 4096, **model: Any) -> EngineConfig:
    return EngineConfig(
        model=ModelOptions(path=str(path), device="cpu", **model),
        cache=CacheOptions(max_total_tokens=pool),
        schedule=ScheduleOptions(chunked_prefill_size=16, max_running_requests=16),
        backends=BackendOptions(attention="torch"),
    )


def requests(new_tokens: int, name: str, start: int = -1) -> list[Request]:
    return [
        Request(
            id=f"{name}{index}",
            tokens=tuple(tokens),
            params=SamplingParams(max_new_tokens=new_tokens, temperature=0.0),
            logprobs=LogprobOptions(start=start),
        )
        for index, tokens in enumerate(prompts())
    ]


def check(model: Any, engine: Any, new_tokens: int, close: float = CLOSE) -> int:
    """Check greedy tokens and log-probabilities with a cold and a warm cache; return the number of retractions."""
    retractions = 0
    for temperature in ("cold", "warm"):
        outputs = engine.outputs(requests(new_tokens, temperature))
        for tokens, output in zip(prompts(), outputs, strict=True):
            assert list(output.tokens) == model.greedy(tokens, new_tokens, output.tokens), temperature
            expected = model.logprobs([*tokens, *output.tokens])[len(tokens) - 1 :]
            assert [entry.logprob for entry in output.logprobs] == pytest.approx(expected, abs=close)
        retractions += sum(output.retractions for output in outputs)
    accounts = engine.control("check")
    assert accounts["free"] + accounts["cached"] == accounts["capacity"]
    if not retractions:
        assert sum(output.cached_tokens for output in outputs) > 100
    return retractions


@pytest.mark.parametrize("family", FAMILIES + FALLBACK)
def test_greedy_tokens_and_logprobs_in_chunks(
    family: str, tiny_model: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    model = tiny_model(family)
    engine = serve(config(model.path))
    chosen = engine.info["components"]["model"]
    assert (chosen["name"] == "transformers") == (family in FALLBACK), chosen
    close = LESS_CLOSE.get(family, CLOSE)
    check(model, engine, NEW_TOKENS, close)
    outputs = engine.outputs(requests(NEW_TOKENS, "logprobs", start=0))
    for tokens, output in zip(prompts(), outputs, strict=True):
        logprobs = [entry.logprob for entry in output.prompt_logprobs[1:]]
        assert logprobs == pytest.approx(model.logprobs(tokens), abs=close)


@pytest.mark.parametrize("family", FAMILIES + FALLBACK)
def test_retracted_sequences_go_on_as_if_nothing_had_happened(
    family: str, tiny_model: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    model = tiny_model(family)
    close = LESS_CLOSE.get(family, CLOSE)
    assert check(model, serve(config(model.path, pool=140)), LONG_RUN, close) > 0


@pytest.mark.parametrize("family", ["qwen3-0.6b", "mistral-7b", "gemma-2-2b", "gpt2"])
def test_a_family_with_a_plugin_can_go_through_transformers_too(
    family: str, tiny_model: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    model = tiny_model(family)
    engine = serve(config(model.path, impl="transformers"))
    assert engine.info["components"]["model"]["name"] == "transformers"
    check(model, engine, NEW_TOKENS)


def test_the_short_factors_serve_what_they_were_made_for(
    tiny_model: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    """A LongRoPE model that is served within its original length equals transformers with the short factors."""
    model = tiny_model("phi-4-mini")
    longer = {
        "max_position_embeddings": 4096,
        "rope_parameters": {"original_max_position_embeddings": 512, "factor": 1},
    }
    engine = serve(config(model.path, context_length=512, overrides=longer))
    check(model, engine, NEW_TOKENS)
    with pytest.raises(AssertionError):
        check(model, serve(config(model.path, overrides=longer)), NEW_TOKENS)
