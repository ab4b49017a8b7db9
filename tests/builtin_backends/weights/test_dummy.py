from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sglang_plug import BuildEnv, Checkpoint, Model
from sglang_plug_backends.weights.dummy import RandomNumbers, load_dummy

CHECKPOINT = Checkpoint(source="x", path=None, config=None)  # type: ignore[arg-type]  # the loader ignores it


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


class CopiedToMeta(TorchDispatchMode):
    """Records the sizes of host tensors that are copied to the meta device."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = list[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.is_meta:
            tensors = [item for item in args if isinstance(item, Tensor)]
            self.sizes += [tensor.numel() for tensor in tensors if tensor.device.type == "cpu"]
        return result


def loaded(width: int = 32, **options: int) -> dict[str, Tensor]:
    model = Toy(width)
    model.load_weights(load_dummy(CHECKPOINT, model, **options))
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


def test_tensors_and_rows_differ() -> None:
    parameters = loaded(64, block_size=1013)
    rows = parameters["qkv.weight"]
    assert len(torch.unique(rows, dim=0)) == len(rows)
    assert not torch.equal(parameters["qkv.bias"][:64], parameters["norm.bias"])


def test_weights_of_a_model_without_memory_are_on_the_host() -> None:
    with torch.device("meta"):
        unborn = Toy()
    assert all(tensor.device.type == "cpu" for _, tensor in load_dummy(CHECKPOINT, unborn))


def test_values_are_made_on_the_device() -> None:
    numbers, accelerator = RandomNumbers(100), torch.device("meta")
    with CopiedToMeta() as copied:
        tensors = [numbers.tensor((50, 30), torch.bfloat16, accelerator, seed) for seed in range(3)]
    assert all(tensor.is_meta and tensor.shape == (50, 30) for tensor in tensors)
    assert copied.sizes == [100], "the block, once"
    assert numbers.tensor((50, 30), torch.bfloat16, torch.device("cpu"), 0).device.type == "cpu"


def test_model_without_parameters() -> None:
    model = Model(SimpleNamespace(), BuildEnv(attention=None))  # type: ignore[arg-type]
    assert list(load_dummy(CHECKPOINT, model)) == []
