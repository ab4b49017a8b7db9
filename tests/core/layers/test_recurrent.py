"""Parts of recurrent layers: the loading of convolutions, and gated norms."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sglang_plug import BuildEnv, Model, WeightError
from sglang_plug.layers import GatedRMSNorm, ShortConv

ENV = BuildEnv(attention=None)  # type: ignore[arg-type]
PARTS = {"q": 2, "v": 3}


class Toy(Model):
    packed = {"q_conv": ("conv", "q"), "v_conv": ("conv", "v")}

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(), ENV)
        self.conv = ShortConv(5, 4, ENV, 0, parts=PARTS)


def test_a_convolution_may_be_stored_in_parts() -> None:
    whole = torch.randn(5, 1, 4)
    unsplit, parts = Toy(), Toy()
    unsplit.load_weights({"conv.weight": whole}.items())
    parts.load_weights({"v_conv.weight": whole[2:], "q_conv.weight": whole[:2]}.items())
    assert torch.equal(unsplit.conv.weight, whole) and torch.equal(parts.conv.weight, whole)


def test_a_convolution_may_be_stored_in_equal_pieces() -> None:
    whole = torch.randn(5, 1, 4)
    pieces = Toy()
    pieces.load_weights({"v_conv.weight": whole[3:], "q_conv.weight": whole[:3]}.items())
    assert torch.equal(pieces.conv.weight, whole)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"q_conv.weight": torch.ones(2, 1, 4)}, "'v' is missing"),
        ({"q_conv.weight": torch.ones(4, 1, 4)}, r"expected shape \(2, 1, 4\), found \(4, 1, 4\)"),
        (
            {"q_conv.weight": torch.ones(2, 1, 4), "v_conv.weight": torch.ones(2, 1, 4)},
            r"expected shape \(3, 1, 4\), found \(2, 1, 4\)",
        ),
    ],
)
def test_every_part_of_it_must_arrive_and_fit(tensors: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(WeightError, match=message):
        Toy().load_weights(tensors.items())


@pytest.mark.parametrize("gate_first", [True, False])
@pytest.mark.parametrize("name", ["silu", "sigmoid"])
def test_a_norm_gates_before_or_behind(gate_first: bool, name: str) -> None:
    norm = GatedRMSNorm(6, 0.1, groups=2, gate_first=gate_first, activation_name=name)
    torch.nn.init.normal_(norm.weight)
    x, gate = torch.randn(4, 6), torch.randn(4, 6)
    factor = gate.sigmoid() if name == "sigmoid" else gate * gate.sigmoid()
    parts = (x * factor if gate_first else x).view(4, 2, 3)
    expected = norm.weight * (parts / (parts.pow(2).mean(-1, keepdim=True) + 0.1).sqrt()).view(4, 6)
    torch.testing.assert_close(norm(x, gate), expected if gate_first else expected * factor)
