"""Whole engines learn the duration of their steps and meet the target, also with drafts, ranks and recurrent states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from sglang_plug import EngineConfig
from sglang_plug.config import BackendOptions, CacheOptions, ModelOptions, ParallelOptions, SpeculativeOptions

from .step_time_bench import Bench, check_learning

pytestmark = pytest.mark.whole_engine

DRAFTS = SpeculativeOptions(algorithm="ngram", num_draft_tokens=5, step_tokens=128)
KINDS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "plain": ("llama-3.2-1b", {}),
    "drafts": ("llama-3.2-1b", {"speculative": DRAFTS}),
    "two ranks": ("llama-3.2-1b", {"parallel": ParallelOptions(tp_size=2, executor="threads")}),
    "recurrent states": ("qwen3.5", {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_with_sequences_that_decode_keep_the_time(
    kind: str, tiny_model: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    family, options = KINDS[kind]
    config = EngineConfig(
        model=ModelOptions(path=str(tiny_model(family).path), device="cpu", dtype="float32"),
        cache=CacheOptions(max_total_tokens=2048),
        backends=BackendOptions(attention="torch", kernels="torch"),
        **options,
    )
    bench = Bench(config, monkeypatch)
    try:
        mixed = bench.run()
    finally:
        bench.loop.close()
    check_learning(bench, mixed)
    assert any(step.drafts for step in bench.steps) == (kind == "drafts")
