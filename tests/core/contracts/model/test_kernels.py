"""The reference kernels against their definitions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sglang_plug.contracts.model.kernels import Kernels, moe, silu_mul

HIDDEN, WIDTH = 8, 6


def token_by_token(x: Tensor, gate_up: Tensor, down: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
    rows = []
    for token, chosen, factors in zip(x, experts.tolist(), weights, strict=True):
        outputs = [down[expert] @ silu_mul((gate_up[expert] @ token)[None])[0] for expert in chosen]
        rows.append(sum((value * factor for value, factor in zip(outputs, factors, strict=True)), torch.zeros(HIDDEN)))
    return torch.stack(rows)


def scene(tokens: int, count: int, chosen: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    weights, experts = draw(tokens, count).softmax(-1).topk(chosen)
    return draw(tokens, HIDDEN), draw(count, 2 * WIDTH, HIDDEN), draw(count, HIDDEN, WIDTH), experts, weights


@settings(max_examples=60, deadline=None)
@given(tokens=st.integers(1, 20), count=st.integers(1, 9), chosen=st.integers(1, 4), seed=st.integers(0, 2**32))
def test_moe(tokens: int, count: int, chosen: int, seed: int) -> None:
    inputs = scene(tokens, count, min(chosen, count), seed)
    torch.testing.assert_close(moe(*inputs), token_by_token(*inputs))


def test_moe_where_all_tokens_choose_the_same_experts() -> None:
    x, gate_up, down, experts, weights = scene(7, 5, 2, 1)
    experts = torch.tensor([[4, 1]]).expand(7, 2)
    torch.testing.assert_close(
        moe(x, gate_up, down, experts, weights), token_by_token(x, gate_up, down, experts, weights)
    )


def test_moe_does_not_touch_experts_that_nobody_chose() -> None:
    x, gate_up, down, experts, weights = scene(3, 6, 2, 2)
    unused = sorted(set(range(6)) - set(experts.flatten().tolist()))
    assert unused
    expected = moe(x, gate_up, down, experts, weights)
    gate_up[unused], down[unused] = torch.nan, torch.nan
    assert torch.equal(moe(x, gate_up, down, experts, weights), expected)


def test_moe_adds_in_float32() -> None:
    """Experts are summed in float32: in bfloat16, 256 + 1 - 256 would be 0."""
    x = torch.ones(1, 1, dtype=torch.bfloat16)
    gate_up = torch.full((3, 2, 1), 30.0, dtype=torch.bfloat16)
    down = torch.full((3, 1, 1), 1 / 900, dtype=torch.bfloat16)
    unit = moe(x, gate_up, down, torch.tensor([[0]]), torch.ones(1, 1)).item()
    assert unit == pytest.approx(1.0, rel=0.02)
    actual = moe(x, gate_up, down, torch.tensor([[0, 1, 2]]), torch.tensor([[256.0, 1.0, -256.0]]))
    assert actual.dtype == torch.bfloat16
    assert actual.item() == pytest.approx(unit, rel=0.01)


def test_moe_gives_a_token_the_same_result_in_any_company() -> None:
    x, gate_up, down, experts, weights = scene(12, 4, 2, 3)
    alone = torch.cat([moe(x[i : i + 1], gate_up, down, experts[i : i + 1], weights[i : i + 1]) for i in range(12)])
    torch.testing.assert_close(moe(x, gate_up, down, experts, weights), alone)


@pytest.mark.parametrize("field", ["rms_norm", "pack_linear", "moe"])
def test_a_kernel_that_is_no_function_is_refused_when_the_set_is_made(field: str) -> None:
    with pytest.raises(TypeError, match=f"Kernels\\('mine'\\): {field} must be a function, not NoneType"):
        Kernels(name="mine", **{field: None})  # type: ignore[arg-type]
    assert Kernels(pack_gated=None, rope_store=None).pack_gated is None
