"""Engines with graphs and overlap on the asynchronous fake device learn the duration of their steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sglang_plug import EngineConfig
from sglang_plug.config import BackendOptions, CacheOptions, ModelOptions
from tests.builtin_backends.step_time.step_time_bench import Bench, check_learning
from tests.fake_cuda.device.tensors import clock


@pytest.mark.usefixtures("idle_device")
def test_prompts_with_sequences_in_graphs_keep_the_time(
    tiny_model: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(
        model=ModelOptions(path=str(tiny_model("llama-3.2-1b").path), device="cuda", dtype="bfloat16"),
        cache=CacheOptions(max_total_tokens=2048),
        backends=BackendOptions(attention="triton", kernels="triton", cuda_graph_max_bs=4),
    )
    bench = Bench(config, monkeypatch)
    clock.executed.clear()
    try:
        mixed = bench.run()
    finally:
        bench.loop.close()
    assert clock.executed["graph"] > 0
    check_learning(bench, mixed, overlap=True)
