"""The matrices that a checkpoint's configuration leaves out of its quantization."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sglang_plug import ConfigError, Matrix
from sglang_plug_backends.quantization.selection import Selection

GATE, PUBLISHED = "model.layers.0.mlp.gate", "model.layers.0.block_sparse_moe.gate"


def matrix(name: str, parts: tuple[str, ...] = (), **fields: Any) -> Matrix:
    fields = {"size_in": 64, "size_out": 32, "dtype": torch.bfloat16, **fields}
    return Matrix(name=name, checkpoint_names=parts or (name,), **fields)


@pytest.mark.parametrize("ignored", [GATE, PUBLISHED, "model.layers.0.block_sparse_moe", r"re:.*sparse_moe\.gate$"])
def test_any_name_of_a_matrix_leaves_it_out(ignored: str) -> None:
    gate = matrix(GATE, other_names={GATE: (PUBLISHED,)})
    assert not Selection(ignored=(ignored,)).holds(gate)
    assert Selection(ignored=("model.layers.0.block_sparse_moe.experts",)).holds(gate)


def test_any_name_of_a_matrix_selects_it() -> None:
    gate = matrix(GATE, other_names={GATE: (PUBLISHED,)})
    assert Selection(targets=(PUBLISHED,)).holds(gate)
    assert not Selection(targets=("model.layers.1",)).holds(gate)


def test_the_other_names_of_parts_are_those_of_one_part_each() -> None:
    parts = ("mixer.q", "mixer.k")
    combined = matrix("mixer.qkv", parts, other_names={"mixer.q": ("mamba.q",), "mixer.k": ("mamba.k",)})
    assert not Selection(ignored=("mamba.q", "mixer.k")).holds(combined)
    with pytest.raises(ConfigError, match=r"leaves mixer\.k out of its quantization, but not all of mixer\.q"):
        Selection(ignored=("mamba.k",)).holds(combined)
