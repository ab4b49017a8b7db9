"""The reference backend passes the conformance tests, on each of its paths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sglang_plug import Attention, AttentionShape, ForwardBatch
from sglang_plug.testing import check_attention_backend
from sglang_plug_backends.torch_native.attention import TorchAttention
from sglang_plug_backends.torch_native.thresholds import MEASURED, Thresholds

BLOCK_SOFTMAX, JOIN, BATCHED_PRODUCT = "aten::_softmax.out", "aten::lerp.Tensor", "aten::bmm"
"""Operations of torch that only attention in query blocks, joined parts of a context, and all key heads at once use."""


class Operations(TorchDispatchMode):
    """Counts torch's operations by name."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self._counts = counts

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self._counts[func.name()] += 1
        return func(*args, **(kwargs or {}))


@cache
def check_with(thresholds: Thresholds, dtype: torch.dtype) -> Counter[str]:
    """Check the backend with these thresholds, and return how often it used each operation of torch."""
    counts = Counter[str]()

    class Observed(TorchAttention):
        def __init__(self, shape: AttentionShape, device: torch.device, settings: Any = None) -> None:
            super().__init__(shape, device, settings, thresholds=thresholds)

        def run(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
            with Operations(counts):
                return super().run(layer, q, k, v, batch)

        def run_after_store(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
            with Operations(counts):
                return super().run_after_store(layer, q, k, v, batch)

        def run_with_lse(
            self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch
        ) -> tuple[Tensor, Tensor]:
            return super().run_with_lse(layer, q, k, v, batch)  # declared anew: a subclass that does not lacks sinks

    check_attention_backend(Observed, dtype=dtype)
    return counts


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_conforms(dtype: torch.dtype) -> None:
    check_attention_backend("torch", dtype=dtype, encoder=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv_dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float16])
def test_it_conforms_with_a_pool_of_another_dtype(dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    check_attention_backend("torch", dtype=dtype, kv_dtype=kv_dtype)


def test_it_conforms_with_prompts_computed_in_blocks() -> None:
    operations = check_with(Thresholds(blocks=1), torch.bfloat16)
    assert operations[BLOCK_SOFTMAX] > check_with(MEASURED, torch.bfloat16)[BLOCK_SOFTMAX]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_conforms_with_shared_prefixes_read_once(dtype: torch.dtype) -> None:
    operations = check_with(Thresholds(shared_prefix=2), dtype)
    assert operations[JOIN] > check_with(MEASURED, dtype)[JOIN]


def test_it_conforms_with_all_heads_at_once() -> None:
    operations = check_with(Thresholds(wide_heads=8, wide_decodes=1), torch.bfloat16)
    assert operations[BATCHED_PRODUCT] > check_with(MEASURED, torch.bfloat16)[BATCHED_PRODUCT]
