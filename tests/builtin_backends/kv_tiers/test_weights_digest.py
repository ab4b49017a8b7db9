"""The digest of a model's weights includes matrices that kernel sets and quantizations have packed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from sglang_plug import BuildEnv, Kernels, LinearFunction
from sglang_plug.layers import Linear
from sglang_plug_backends.avx512 import kernels as avx512_kernels
from sglang_plug_backends.avx512.library import why_not
from sglang_plug_backends.cpu import kernels as cpu_kernels
from sglang_plug_backends.kv_tiers.extension import KVTiers
from sglang_plug_backends.kv_tiers.weights_digest import WeightsDigest, parameter_sizes
from sglang_plug_backends.lora.lora_batch import AdaptedProduct, CurrentStep
from sglang_plug_backends.quantization.int8 import pack_int8, quantize
from sglang_plug_backends.quantization.matmul import pack_quantized
from tests.builtin_backends.quantized_weights import random_weight

SIZE_OUT, SIZE_IN = 304, 250
GATED = 288
Pack = Callable[[Tensor, Tensor | None], LinearFunction]


def of_avx512(name: str) -> Any:
    if reason := why_not():
        pytest.skip(reason)
    return getattr(avx512_kernels.build(), name)


def gated(weight: Tensor, bias: Tensor | None, *, pack: Pack) -> LinearFunction:
    return pack(weight[:GATED], None if bias is None else bias[:GATED])


def in_int8(weight: Tensor, bias: Tensor | None, pack: Callable[..., LinearFunction] = pack_int8) -> LinearFunction:
    return pack(*quantize(weight), bias)


def in_codes(weight: Tensor, bias: Tensor | None, *, kind: str, kernels: Kernels) -> LinearFunction:
    quantized_weight = random_weight(kind, SIZE_OUT, 256, 64)
    quantized_weight.codes[1, 2] = 0 if bool((weight == weight.flatten()[0]).all()) else 5
    return pack_quantized(quantized_weight, bias, torch.bfloat16, kernels)


PACKINGS: dict[str, Callable[[], Pack]] = {
    "torch": lambda: Kernels().pack_linear,
    "cpu": lambda: cpu_kernels.pack_linear,
    "avx512": lambda: of_avx512("pack_linear"),
    "avx512 gated": lambda: partial(gated, pack=of_avx512("pack_gated")),
    "int8": lambda: in_int8,
    "avx512 int8": lambda: partial(in_int8, pack=of_avx512("pack_int8")),
    **{f"{kind} codes": partial(partial, in_codes, kind=kind, kernels=Kernels()) for kind in ("4", "8", "e4m3")},
    **{
        f"avx512 {kind} codes": lambda kind=kind: partial(  # type: ignore[misc]
            in_codes, kind=kind, kernels=Kernels(pack_quantized=of_avx512("pack_quantized"))
        )
        for kind in ("4", "8", "e4m3")
    },
}


def packed(pack: Pack, dtype: torch.dtype, *, change: Callable[[Linear], Any] = lambda layer: None) -> nn.Module:
    layer = Linear(SIZE_IN, SIZE_OUT, BuildEnv(attention=Mock(), kernels=Kernels(pack_linear=pack)), bias=True)
    layer.to(dtype)
    nn.init.ones_(layer.weight)
    nn.init.zeros_(layer.bias)
    with torch.no_grad():
        change(layer)
    sizes = parameter_sizes(layer)
    layer.pack_weights()
    assert not list(layer.parameters())
    model = nn.ModuleList([layer])
    model.sizes = {f"0{name}": size for name, size in sizes.items()}  # type: ignore[assignment]
    return model


def digest(model: Any) -> bytes | None:
    result = WeightsDigest(model, model.sizes)
    result.wait(60)
    return result.value


def change_weight(layer: Linear) -> None:
    layer.weight[2, 1] += 1


def change_bias(layer: Linear) -> None:
    layer.bias[0] = 3


@pytest.mark.parametrize("name", PACKINGS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_packed_matrices_count(name: str, dtype: torch.dtype) -> None:
    if dtype == torch.float32 and name.startswith("avx512") and "codes" not in name:
        pytest.skip("the kernels keep matrices in other dtypes than bfloat16 as torch does")
    pack = PACKINGS[name]()
    models = [packed(pack, dtype, change=change) for change in (lambda layer: None, change_weight, change_bias)]
    digests = [digest(model) for model in models]
    assert None not in digests and len(set(digests)) == 3
    assert digest(packed(pack, dtype)) == digests[0]


def test_a_matrix_that_adapters_may_change_counts() -> None:
    models = [
        packed(Kernels().pack_linear, torch.float32, change=change) for change in (lambda layer: None, change_weight)
    ]
    for (layer,) in models:
        layer.wrap_product(lambda multiply: AdaptedProduct("layer", multiply, CurrentStep()))
    first, second = map(digest, models)
    assert None not in (first, second) and first != second


def test_weights_that_cannot_be_read_have_no_digest(caplog: pytest.LogCaptureFixture) -> None:
    elsewhere = list[Tensor]()

    def pack(weight: Tensor, bias: Tensor | None) -> LinearFunction:
        elsewhere.append(weight)
        return lambda x: x

    with caplog.at_level(logging.WARNING):
        assert digest(packed(pack, torch.float32)) is None
    assert "cannot be read, such as those of 0" in caplog.text


@dataclass
class Config:
    """A configuration with a field that only some layers use."""

    head_dim: int = 8

    def __getattribute__(self, name: str) -> Any:
        if name == "head_dim":
            raise RuntimeError("it varies across layers")
        return super().__getattribute__(name)


def test_fields_that_cannot_be_read_as_attributes_are_no_error() -> None:
    model = packed(Kernels().pack_linear, torch.float32)
    model.config = Config()  # type: ignore[assignment]
    assert digest(model) is not None


def test_no_thread_computes_a_digest_after_new_weights_or_the_end() -> None:
    model: Any = nn.Module()
    model.weight = torch.zeros(64 << 20)  # hashing them takes a large part of a second
    tiers = KVTiers(Mock(), "host", 0)

    def hashing() -> int:
        return sum(thread.name == "kv-weights-digest" for thread in threading.enumerate())

    for _ in range(2):
        tiers.install(model, Kernels())
        assert hashing() <= 1
    tiers.close()
    assert hashing() == 0
