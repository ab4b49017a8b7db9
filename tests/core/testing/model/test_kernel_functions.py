"""The conformance test of kernel sets finds planted faults in the functions other than attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug import Kernels
from sglang_plug.contracts.model.kernels import TORCH, rope_store
from sglang_plug.testing import check_kernel_functions


def test_the_reference_conforms() -> None:
    check_kernel_functions(Kernels())
    check_kernel_functions(
        Kernels(
            rope_store=rope_store,
            pack_gated=lambda weight, bias: lambda x: TORCH.silu_mul(F.linear(x, weight, bias)),
        )
    )


def dense(x: Tensor) -> Tensor:
    """Read ``x`` as if its rows were contiguous."""
    return x.as_strided(x.shape, torch.empty(x.shape).stride(), x.storage_offset())


def swapped(gate_up: Tensor) -> Tensor:
    up, gate = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def wide(gate_up: Tensor) -> Tensor:
    return TORCH.silu_mul(gate_up.float())


def without_bias(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    return lambda x: F.linear(x, weight)


def for_one_token(*arguments: Any) -> Tensor:
    output = TORCH.moe(*arguments)
    return output * 1.5 if len(output) == 1 else output


def unweighted(x: Tensor, gate_up: Tensor, down: Tensor, *others: Any) -> Tensor:
    biases, (experts, weights, gated) = others[:2], others[2:]
    return TORCH.biased_moe(x, gate_up, down, *biases, experts, torch.ones_like(weights), gated)


def interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    width = cos.shape[-1]
    even, odd = x[..., 0:width:2], x[..., 1:width:2]
    cos, sin = cos[:, None, : width // 2], sin[:, None, : width // 2]
    pairs = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1)
    return torch.cat((pairs.flatten(-2), x[..., width:]), -1).to(x.dtype)


def first_slots(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, kv: Any, layer: int, slots: Tensor) -> Any:
    return rope_store(q, k, v, cos, sin, kv, layer, slots.sort().values)


@pytest.mark.planted_bug("kernels")
@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("silu_mul", swapped, "silu_mul of 1 tokens in torch.float32: row 0 is off"),
        ("silu_mul", wide, "silu_mul of 1 tokens in torch.bfloat16: is torch.float32"),
        ("rms_norm", lambda x, weight, eps: TORCH.rms_norm(dense(x), weight, eps), "rms_norm of 2 tokens .* is off"),
        ("add_rms_norm", lambda x, r, weight, eps: (TORCH.rms_norm(x, weight, eps), x + r), "add_rms_norm .* result 0"),
        ("apply_rope", interleaved, "apply_rope, 32 of 32 columns of 1 tokens"),
        ("rope_store", first_slots, "rope_store, 32 of 32 columns of 2 tokens in torch.float32, result 2"),
        ("moe", for_one_token, "moe of 1 tokens"),
        ("biased_moe", unweighted, "biased_moe of 1 tokens"),
        ("pack_linear", without_bias, "pack_linear of 1 tokens"),
    ],
)
def test_planted_bugs_are_named(name: str, wrong: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_kernel_functions(Kernels(**{name: wrong}))
