"""Served outputs equal transformers' on the same weights: through scheduler, cache, chunks and retraction."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from sglang_plug import EngineConfig, LogprobOptions, Output, Request, SamplingParams
from sglang_plug.config import BackendOptions, CacheOptions, ModelOptions, ScheduleOptions

FAMILIES = ["llama-3.2-1b", "qwen2.5-0.5b", "qwen3-0.6b", "mistral-7b"]


def prompts() -> list[list[int]]:
    """Return prompts of mixed lengths, some of which share long prefixes."""
    draw = random.Random(3)
    shared = [draw.randrange(3, 512) for _ in range(60)]
    own = [[draw.randrange(3, 512) for _ in range(length)] for length in (1, 2, 17, 33, 90)]
    return [*own, shared + own[1], shared + own[2], shared[:40], [*shared]]


def config(path: Any, chunk: int = 8192, pool: int | None = None, attention: str = "torch") -> EngineConfig:
    return EngineConfig(
        model=ModelOptions(path=str(path), device="cpu"),
        cache=CacheOptions(max_total_tokens=pool or 4096),
        schedule=ScheduleOptions(chunked_prefill_size=chunk, max_running_requests=16),
        backends=BackendOptions(attention=attention),
    )


def requests(new_tokens: int, name: str = "", start: int = -1) -> list[Request]:
    return [
        Request(
            id=f"{name}{index}",
            tokens=tuple(tokens),
            params=SamplingParams(max_new_tokens=new_tokens, temperature=0.0),
            logprobs=LogprobOptions(start=start, ranks=start >= 0),
        )
        for index, tokens in enumerate(prompts())
    ]


def check_ranks(model: Any, outputs: list[Output]) -> None:
    """Check that the ranks of prompt tokens equal those of transformers, except where rounding may change them."""
    certain = []
    for tokens, output in zip(prompts(), outputs, strict=True):
        first, *ranks = [entry.rank for entry in output.prompt_logprobs]
        possible = model.ranks(tokens)
        assert first is None
        assert all(rank in some for rank, some in zip(ranks, possible, strict=True))
        certain += [len(some) == 1 for some in possible]
    assert sum(certain) > len(certain) / 2


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("chunk", "pool", "new_tokens"),
    [(8192, None, 12), (16, None, 12), (16, 140, 40)],
    ids=["whole", "chunks", "retracted"],
)
def test_greedy_tokens_and_logprobs(
    family: str,
    chunk: int,
    pool: int | None,
    new_tokens: int,
    tiny_model: Callable[..., Any],
    serve: Callable[..., Any],
) -> None:
    model = tiny_model(family)
    engine = serve(config(model.path, chunk, pool))
    retractions = 0
    for temperature in ("cold", "warm"):
        outputs = engine.outputs(requests(new_tokens, temperature))
        retractions += sum(output.retractions for output in outputs)
        for tokens, output in zip(prompts(), outputs, strict=True):
            assert list(output.tokens) == model.greedy(tokens, new_tokens, output.tokens), temperature
            logprobs = [entry.logprob for entry in output.logprobs]
            assert logprobs == pytest.approx(model.logprobs([*tokens, *output.tokens])[len(tokens) - 1 :], abs=1e-4)
    if pool is not None:
        assert retractions > 0
    else:
        assert sum(output.cached_tokens for output in outputs) > 200
    outputs = engine.outputs(requests(new_tokens, "logprobs", start=0))
    for tokens, output in zip(prompts(), outputs, strict=True):
        assert output.prompt_logprobs[0].logprob is None
        logprobs = [entry.logprob for entry in output.prompt_logprobs[1:]]
        assert logprobs == pytest.approx(model.logprobs(tokens), abs=1e-4)
        assert [entry.token for entry in output.prompt_logprobs] == tokens
    check_ranks(model, outputs)
    accounts = engine.control("check")
    assert accounts["free"] + accounts["cached"] == accounts["capacity"]
