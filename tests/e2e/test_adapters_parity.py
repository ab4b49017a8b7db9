"""Requests with different LoRA adapters, and with none, equal transformers with merged weights, in one batch."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import EngineConfig, LogprobOptions, Request, SamplingParams
from sglang_plug.config import AdapterOptions, BackendOptions, CacheOptions, ModelOptions, ScheduleOptions
from tests.peft_adapters import Lora, linears, make_lora

FAMILIES = {
    "llama-3.2-1b": r".*(q|v)_proj",
    "qwen2.5-0.5b": r".*layers.*_proj",
    "qwen3-0.6b": r".*layers.*(q|k|o|up|down)_proj",
    "mistral-7b": r".*layers.*_proj",
    "gemma-2-2b": r".*layers.*_proj",
    "gemma-3-1b": r".*layers.*(v|gate)_proj",
    "phi-3-mini": r".*layers.*(qkv|o|gate_up|down)_proj",
    "olmo-2-1b": r".*layers.*_proj",
    "gpt2": r".*\.(c_attn|c_proj|c_fc)",
    "falcon-7b": r".*h\.\d+.*",
    "bloom-560m": r".*h\.\d+.*",
    "gpt-j-6b": r".*h\.\d+.*",
    "gpt-neo-125m": r".*h\.\d+.*",
    "qwen3-moe": r".*self_attn\.\w_proj|.*layers\.0\.mlp\.\w+_proj",
    "qwen1.5-moe": r".*self_attn\.\w_proj|.*shared_expert\.\w+_proj",
    "mixtral-8x7b": r".*self_attn\.\w_proj",
    "deepseek-v2": r".*(q_a_proj|q_b_proj|kv_a_proj_with_mqa|o_proj)",
}
"""The matrices that the adapters change, by family."""
NEW_TOKENS = 6


def prompts() -> list[list[int]]:
    """Return prompts, some of which share long prefixes."""
    draw = random.Random(5)
    shared = [draw.randrange(3, 512) for _ in range(50)]
    return [shared + [draw.randrange(3, 512) for _ in range(length)] for length in (1, 20)]


def config(
    path: Path, *adapters: Lora, pool: int = 4096, chunk: int = 16, running: int = 16, **more: Any
) -> EngineConfig:
    options = {"enabled": True, "paths": tuple(f"{adapter.path.name}={adapter.path}" for adapter in adapters), **more}
    return EngineConfig(
        model=ModelOptions(path=str(path), device="cpu", dtype="float32"),
        cache=CacheOptions(max_total_tokens=pool),
        schedule=ScheduleOptions(chunked_prefill_size=chunk, max_running_requests=running),
        backends=BackendOptions(attention="torch", kernels="torch"),
        adapters=AdapterOptions(**options),
    )


def requests(names: list[str | None], prefix: str, count: int = NEW_TOKENS) -> list[Request]:
    """Return a request for every prompt with every adapter; neighbouring requests have different adapters."""
    return [
        Request(
            id=f"{prefix}-{name}-{index}",
            tokens=tuple(tokens),
            adapter=name,
            params=SamplingParams(max_new_tokens=count, temperature=0.0),
            logprobs=LogprobOptions(),
        )
        for index, tokens in enumerate(prompts())
        for name in names
    ]


def expected(model: Any, adapters: dict[str | None, Lora], count: int = NEW_TOKENS) -> dict[Any, Any]:
    """Return the greedy tokens and log-probabilities of transformers for each adapter and prompt."""
    references = {}
    for name in [None, *adapters]:
        merged = type(model)(model.path, model.reference if name is None else adapters[name].merged(model.reference))
        for index, tokens in enumerate(prompts()):
            new = merged.greedy(tokens, count)
            references[name, index] = new, merged.logprobs([*tokens, *new])[len(tokens) - 1 :]
    return references


def check(
    engine: Any, references: dict[Any, Any], names: list[str | None], prefix: str, count: int = NEW_TOKENS
) -> list[Any]:
    batch = requests(names, prefix, count)
    outputs = engine.outputs(batch)
    for request, output in zip(batch, outputs, strict=True):
        tokens, logprobs = references[request.adapter, int(request.id.rpartition("-")[2])]
        assert list(output.tokens) == tokens, request.id
        assert [entry.logprob for entry in output.logprobs] == pytest.approx(logprobs, abs=1e-4), request.id
    return outputs


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_merged_weights(
    tmp_path: Path, tiny_model: Callable[[str], Any], serve: Callable[..., Any], family: str
) -> None:
    model = tiny_model(family)
    targets = linears(model.reference, FAMILIES[family])
    adapters: dict[str | None, Lora] = {
        "first": make_lora(tmp_path / "first", model.reference, targets, seed=1),
        "second": make_lora(tmp_path / "second", model.reference, targets[::2], rank=3, alpha=5, seed=2),
    }
    references = expected(model, adapters)
    assert len({round(logprobs[0], 4) for _, logprobs in references.values()}) == len(references), (
        "the adapters change nothing"
    )
    engine = serve(config(model.path, *adapters.values()))
    names = [None, "first", "second"]
    for temperature in ("cold", "warm"):
        outputs = check(engine, references, names, temperature)
    assert all(output.cached_tokens >= 48 for output in outputs)
