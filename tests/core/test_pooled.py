"""States of ragged prompts to one vector each."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sglang_plug import Pooling
from sglang_plug.model import Model, pooled

lengths = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def one(states: Tensor, mode: str) -> Tensor:
    return {"last": states[-1], "cls": states[0], "mean": states.mean(0)}[mode]


@pytest.mark.parametrize("mode", ["last", "cls", "mean"])
@given(lengths=lengths, normalize=st.booleans())
def test_each_prompt_as_if_it_were_alone(
    mode: Literal["last", "cls", "mean"], lengths: list[int], normalize: bool
) -> None:
    hidden = torch.randn(sum(lengths), 5, generator=torch.Generator().manual_seed(sum(lengths)))
    found = pooled(hidden, lengths, Pooling(mode=mode, normalize=normalize))
    assert found.shape == (len(lengths), 5)
    for row, states in zip(found, hidden.split(lengths), strict=True):
        expected = one(states, mode)
        expected = expected / expected.norm() if normalize else expected
        torch.testing.assert_close(row, expected)


def test_vectors_are_float32_whatever_the_model_computes_in() -> None:
    hidden = torch.tensor([[3.0, 4.0]], dtype=torch.bfloat16)
    found = pooled(hidden, [1], Pooling())
    assert found.dtype == torch.float32
    assert found.tolist() == [pytest.approx([0.6, 0.8])]


@pytest.mark.parametrize(("mode", "whole"), [("last", False), ("cls", True), ("mean", True)])
def test_only_the_last_state_survives_cutting(mode: Literal["last", "cls", "mean"], whole: bool) -> None:
    assert Model.pools_whole_prompts(Pooling(mode=mode)) is whole
