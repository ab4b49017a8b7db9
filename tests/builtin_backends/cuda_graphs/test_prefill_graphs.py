"""The numbers of tokens for which prefill graphs are captured, and the engines that use such graphs."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_plug import ExecutionPhase
from sglang_plug_backends.cuda_graphs.build import build_piecewise_graphs
from sglang_plug_backends.cuda_graphs.prefill_graphs import token_counts

from .test_decode_graphs import extension_context


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
    assert build_piecewise_graphs(extension_context(device=device, ranks=ranks, **options, **model)) is None


def test_where_there_are_some() -> None:
    context = extension_context(piecewise_cuda_graph_max_tokens=64)
    assert isinstance(build_piecewise_graphs(context), ExecutionPhase)
