"""The salts of adapters are equal for equal matrices only."""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_plug import Adapter, LayerAdapter
from sglang_plug_backends.lora.adapter_salt import adapter_salt
from sglang_plug_backends.lora.layer import LoraLayer, Pair


def adapter(name: str = "q", *, columns: int = 0, scale: float = 2.0, change: int | None = None) -> Adapter:
    """Return an adapter of one layer; ``change`` is the index of a number to change."""
    numbers = torch.arange(24, dtype=torch.float32)
    if change is not None:
        numbers[change] += 1
    down, up = numbers[:8].view(2, 4), numbers[8:].view(8, 2)
    return Adapter(layers={name: LoraLayer([Pair(slice(columns, columns + 8), down, up, scale)])})


class Scaled(LayerAdapter):
    """An adapter of another format, without low-rank matrices."""

    def after(self, x: Tensor, y: Tensor) -> None:
        y *= 2


def test_equal_matrices_have_one_salt() -> None:
    assert adapter_salt(adapter(), whole=True) == adapter_salt(adapter(), whole=True)


def test_every_difference_counts() -> None:
    others = [adapter("k"), adapter(columns=8), adapter(scale=1.0), *(adapter(change=index) for index in range(24))]
    assert len({adapter_salt(other, whole=True) for other in (adapter(), *others)}) == 28


def test_what_a_digest_does_not_tell_apart_has_a_random_salt() -> None:
    scaled = Adapter(layers={**adapter().layers, "z": Scaled()})
    assert adapter_salt(scaled, whole=True) != adapter_salt(scaled, whole=True)
    assert adapter_salt(adapter(), whole=False) != adapter_salt(adapter(), whole=False)
