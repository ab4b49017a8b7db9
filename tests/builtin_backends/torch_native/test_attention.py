"""The reference backend passes the conformance tests, on each of its paths."""

from __future__ import annotations

import pytest
import torch

from sglang_plug.testing import check_attention_backend
from sglang_plug_backends.torch_native import attention, plan


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_conforms(dtype: torch.dtype) -> None:
    check_attention_backend("torch", dtype=dtype, encoder=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv_dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float16])
def test_it_conforms_with_a_pool_of_another_dtype(dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    check_attention_backend("torch", dtype=dtype, kv_dtype=kv_dtype)


def test_it_conforms_with_prompts_computed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(attention, "BLOCKS_FROM", 1)
    real = attention.attend_in_blocks
    monkeypatch.setattr(attention, "attend_in_blocks", lambda *args: calls.append(1) or real(*args))
    check_attention_backend("torch", dtype=torch.bfloat16)
    assert calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_conforms_with_shared_prefixes_read_once(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(plan, "SHARED_PREFIX", 2)
    real = attention.join
    monkeypatch.setattr(attention, "join", lambda *args: calls.append(1) or real(*args))
    check_attention_backend("torch", dtype=dtype)
    assert calls


@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_it_conforms_with_all_heads_at_once(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(attention, "WIDE_FROM", 1)
    monkeypatch.setattr(attention, "WIDE_HEADS", 8)
    real = attention.attend_wide
    monkeypatch.setattr(attention, "attend_wide", lambda *args: calls.append(1) or real(*args))
    check_attention_backend("torch", dtype=dtype)
    assert calls
