"""Which numbers of tokens are captured, and where."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_plug.config import BackendOptions, EngineConfig, ParallelOptions
from sglang_plug.engine.cuda_graphs.prefill_graphs import prefill_graphs_of, token_counts


def test_token_counts() -> None:
    assert token_counts(1) == [1]
    assert token_counts(48) == [8, 16, 32, 48]
    assert token_counts(100) == [8, 16, 32, 48, 64, 96, 100]
    assert token_counts(512)[-5:] == [256, 320, 384, 448, 512]
    assert token_counts(2048)[-3:] == [1792, 1920, 2048]


@pytest.mark.parametrize(
    ("device", "options", "ranks", "model"),
    [
        ("cuda", {}, 1, {}),
        ("cuda", {"piecewise_cuda_graph_max_tokens": 64, "disable_cuda_graph": True}, 1, {}),
        ("cuda", {"piecewise_cuda_graph_max_tokens": 64}, 2, {}),
        ("cuda", {"piecewise_cuda_graph_max_tokens": 64}, 1, {"causal": False}),
        ("cuda", {"piecewise_cuda_graph_max_tokens": 64}, 1, {"states": ("some",)}),
        ("cpu", {"piecewise_cuda_graph_max_tokens": 64}, 1, {}),
    ],
)
def test_where_there_are_none(device: str, options: dict[str, Any], ranks: int, model: dict[str, Any]) -> None:
    config = EngineConfig(backends=BackendOptions(**options), parallel=ParallelOptions(tp_size=ranks))
    known = {"causal": True, "states": (), "chunk_size": 2048, "max_running": 8, **model}
    resolved: Any = SimpleNamespace(config=config, device=torch.device(device), **known)
    backend: Any = None
    assert prefill_graphs_of(resolved, backend) is None
