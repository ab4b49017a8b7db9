"""The choice of the device for a model, and of the dtype of its weights."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_plug import ConfigError
from sglang_plug.engine.loading.device import choose_device, choose_dtype


@pytest.mark.parametrize(
    ("name", "devices", "message"),
    [
        ("cuda", 0, "--device cuda: torch sees no CUDA device here"),
        ("cuda:7", 0, "--device cuda:7: torch sees no CUDA device here"),
        ("cuda:2", 2, "--device cuda:2: torch sees 2 CUDA devices here; the last is cuda:1"),
        ("abacus", 0, "--device 'abacus' is not a device that torch knows"),
        ("meta", 0, "--device meta: torch cannot compute there"),
        ("xpu", 0, "--device xpu: torch cannot compute there"),
    ],
)
def test_devices_that_are_not_there(name: str, devices: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_device(name, cuda_devices=devices)


def test_devices_that_are_there() -> None:
    names = ("cpu", "cuda", "cuda:0", "cuda:1")
    assert [choose_device(name, cuda_devices=2).type for name in names] == ["cpu", *["cuda"] * 3]


def test_each_replica_has_devices_of_its_own() -> None:
    names = ("cpu", "auto", "cuda", "cuda:1")
    assert [str(choose_device(name, 2, cuda_devices=4)) for name in names] == [
        "cpu",
        *["cuda:2"] * 2,
        "cuda:3",
    ]
    with pytest.raises(ConfigError, match="--device cuda with this many --replicas needs cuda:4: torch sees 4"):
        choose_device("cuda", 4, cuda_devices=4)


@pytest.mark.parametrize(
    ("whole", "decoder", "device", "expected"),
    [
        ({"dtype": torch.bfloat16}, {}, "cuda", torch.bfloat16),
        ({"dtype": None}, {"dtype": torch.bfloat16}, "cuda", torch.bfloat16),
        ({}, {"torch_dtype": "float16"}, "cuda", torch.float16),
        ({"dtype": "bfloat16"}, {"dtype": "float32"}, "cpu", torch.bfloat16),
        ({}, {"dtype": torch.float16}, "cpu", torch.float32),
        ({"dtype": "float16", "quantization_config": {"quant_method": "awq"}}, {}, "cpu", torch.bfloat16),
        ({"dtype": "float16", "quantization_config": {"quant_method": "awq"}}, {}, "cuda", torch.float16),
        ({}, {}, "cuda", torch.float32),
    ],
)
def test_the_dtype_is_that_of_the_whole_or_of_the_decoder(
    whole: dict[str, Any], decoder: dict[str, Any], device: str, expected: torch.dtype
) -> None:
    configs = SimpleNamespace(**whole), SimpleNamespace(**decoder)
    assert choose_dtype("auto", *configs, torch.device(device)) == expected
    assert choose_dtype("float32", *configs, torch.device(device)) == torch.float32


def test_a_dtype_that_is_unknown_is_refused() -> None:
    with pytest.raises(ConfigError, match="--dtype 'float8' is unknown; known: auto, float32"):
        choose_dtype("float8", SimpleNamespace(), SimpleNamespace(), torch.device("cpu"))
