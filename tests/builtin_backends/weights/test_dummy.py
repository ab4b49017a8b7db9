from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from sglang_plug import BuildEnv, Checkpoint, Model
from sglang_plug_backends.weights import dummy
from sglang_plug_backends.weights.dummy import load_dummy

CHECKPOINT = Checkpoint(source="x", path=None, config=None)  # type: ignore[arg-type]  # never looked at


class Toy(Model):
    packed = {"q": ("qkv", "q"), "k": ("qkv", "k")}

    def __init__(self, width: int = 32) -> None:
        super().__init__(SimpleNamespace(), BuildEnv(attention=None))  # type: ignore[arg-type]
        self.embed = nn.Embedding(101, width, dtype=torch.bfloat16)
        self.qkv = nn.Linear(width, 3 * width)
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.head_weights = nn.Linear(width, 101, bias=False, dtype=torch.bfloat16)
        self.head_weights.weight = self.embed.weight


def loaded(width: int = 32) -> dict[str, Tensor]:
    model = Toy(width)
    model.load_weights(load_dummy(CHECKPOINT, model))
    return dict(model.named_parameters())


def test_model_is_filled_with_small_numbers_and_norms_of_one() -> None:
    parameters = loaded()
    assert torch.equal(parameters["norm.weight"], torch.ones(32))
    for name in ("embed.weight", "qkv.weight", "qkv.bias", "norm.bias"):
        values = parameters[name].float()
        assert 0.01 < values.std() < 0.03, name
        assert values.abs().max() < 0.2, name
    assert parameters["scale"].abs() < 0.2
    assert parameters["embed.weight"].dtype == torch.bfloat16


def test_every_run_makes_the_same_numbers() -> None:
    first, second = loaded(), loaded()
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_tensors_and_rows_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dummy, "BLOCK", 1013)
    parameters = loaded(64)
    rows = parameters["qkv.weight"]
    assert len(torch.unique(rows, dim=0)) == len(rows)
    assert not torch.equal(parameters["qkv.bias"][:64], parameters["norm.bias"])


def test_values_are_made_where_the_parameter_is(monkeypatch: pytest.MonkeyPatch) -> None:
    tiled: list[tuple[torch.device, torch.device]] = []
    tile = dummy._tile

    def watched(block: Tensor, shape: torch.Size, seed: int) -> Tensor:
        result = tile(block, shape, seed)
        tiled.append((block.device, result.device))
        return result

    monkeypatch.setattr(dummy, "_tile", watched)
    with torch.device("meta"):
        unborn = Toy()
    assert all(tensor.device.type == "cpu" for _, tensor in load_dummy(CHECKPOINT, unborn))
    monkeypatch.setattr(dummy, "HOST", torch.device("meta"))  # stands in for an accelerator
    assert all(tensor.is_meta for name, tensor in load_dummy(CHECKPOINT, unborn) if name != "norm.weight")
    assert {item.type for pair in tiled[:5] for item in pair} == {"cpu"}
    assert {item.type for pair in tiled[5:] for item in pair} == {"meta"}


def test_model_without_parameters() -> None:
    model = Model(SimpleNamespace(), BuildEnv(attention=None))  # type: ignore[arg-type]
    assert list(load_dummy(CHECKPOINT, model)) == []
