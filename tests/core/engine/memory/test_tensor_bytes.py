"""The number of bytes in the tensors of an engine's parts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sglang_plug.engine.memory.budget import tensor_bytes


@dataclass
class Packed:
    words: Tensor
    scales: Tensor


class Layer(nn.Module):
    def __init__(self, shared: nn.Parameter) -> None:
        super().__init__()
        self.shared = shared
        self.own = nn.Parameter(torch.zeros(10))
        self.packed = Packed(torch.zeros(100, dtype=torch.int8), torch.zeros(5))
        self.views = [self.own[:3], self.packed.words[3:]]
        self.register_buffer("table", torch.zeros(7))


def test_tensors_count_once() -> None:
    shared = nn.Parameter(torch.zeros(1000))
    assert tensor_bytes(nn.Sequential(Layer(shared), Layer(shared))) == 4000 + 2 * (40 + 100 + 20 + 28)
