"""The conformance test of recurrent kernels accepts the definitions, and finds planted faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from sglang_plug import Kernels, SequenceSpans
from sglang_plug.ops import ssm as scanning
from sglang_plug.testing import check_recurrence


def test_the_definitions_pass() -> None:
    check_recurrence(Kernels())


def shifted(x: Tensor, weight: Tensor, bias: Tensor | None, states: Tensor, runs: SequenceSpans) -> Tensor:
    return scanning.causal_conv(x, weight.roll(1, 1), bias, states, runs)


def forgetful(*arguments: Any) -> Tensor:
    *inputs, states, runs = arguments
    return scanning.linear_attention(*inputs, states.clone(), runs)


def greedy(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, states: Tensor, runs: SequenceSpans) -> Tensor:
    states[0] += 1
    return scanning.gated_delta_rule(q, k, v, decay, beta, states, runs)


def wide(*arguments: Any) -> Tensor:
    return scanning.selective_scan(*arguments).double()


def cut_at_chunks(*arguments: Any) -> Tensor:
    output, runs = scanning.gated_delta_rule(*arguments), arguments[-1]
    for start, length in zip(runs.starts.tolist(), runs.lengths, strict=False):
        if length % 64 == 0:
            output[start + length - 1] = 0
    return output


@pytest.mark.planted_bug("kernels")
@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("causal_conv", shifted, "causal_conv in torch.float32 of .*, .1. tokens: relative error of outputs"),
        ("linear_attention", forgetful, "linear_attention in torch.float32 .* relative error of states"),
        ("gated_delta_rule", greedy, "gated_delta_rule .* another sequence's state was changed"),
        ("gated_delta_rule", cut_at_chunks, r"gated_delta_rule .*\[64, 32\] tokens: relative error of outputs"),
        ("selective_scan", wide, r"selective_scan .* gives \[1, 64\] torch.float64, not \[1, 64\] torch.float32"),
    ],
)
def test_what_is_wrong_is_named(name: str, wrong: Callable[..., Tensor], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_recurrence(Kernels(**{name: wrong}))
