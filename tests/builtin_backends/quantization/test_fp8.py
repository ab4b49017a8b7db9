"""Weights quantized to e4m3 are close to the original, and calls of tensor cores match the definition."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from sglang_plug import ConfigError, LinearScheme, Matrix, QuantizationRequest, QuantizedWeight
from sglang_plug.contracts.model.kernels import TORCH, LinearFunction
from sglang_plug.testing import check_quantization
from sglang_plug_backends.quantization import fp8
from sglang_plug_backends.quantization.settings import Fp8Settings


def request(**changes: Any) -> QuantizationRequest:
    return QuantizationRequest(**{"device": torch.device("cpu"), "dtype": torch.bfloat16, **changes})


def matrix(**changes: Any) -> Matrix:
    plain = {"name": "a.qkv", "checkpoint_names": ("a.q", "a.k"), "size_in": 64, "size_out": 32}
    return Matrix(**{**plain, "dtype": torch.bfloat16, **changes})


def scheme(quantization: dict[str, Any] | None = None, head: bool = False, **changes: Any) -> LinearScheme | None:
    return fp8.build(request(stored=quantization), Fp8Settings(head=head)).scheme(matrix(**changes))


def test_conformance() -> None:
    check_quantization("fp8", tolerance=0.1)


def test_every_number_is_within_half_a_step() -> None:
    torch.manual_seed(0)
    x = torch.randn(50, 64) * torch.logspace(-6, 6, 50)[:, None]
    eight, scale = fp8.quantize(x)
    back = eight.float() * scale
    # three bits of mantissa; below the smallest normal number the step is constant
    allowed = torch.maximum(x.abs() * 2**-4, scale * 2**-10) * 1.001
    assert bool(((back - x).abs() <= allowed).all())
    assert bool((eight.float().abs().amax(1) == fp8.LARGEST).all())


def test_zeros_stay_zeros() -> None:
    eight, scale = fp8.quantize(torch.zeros(3, 16))
    assert not eight.float().any() and bool(scale.isfinite().all())


@pytest.mark.parametrize("rows", [1, 17, 64])
def test_the_call_for_tensor_cores_equals_the_definition(rows: int) -> None:
    torch.manual_seed(rows)
    x, x_scale = fp8.quantize(torch.randn(rows, 64))
    weight, scale = fp8.quantize(torch.randn(96, 64) * torch.logspace(-2, 2, 96)[:, None])
    operands = x, x_scale, weight.t(), scale.t().contiguous()
    try:
        result = fp8.multiply_scaled(*operands)
    except RuntimeError as error:
        pytest.skip(f"this torch has no scaled product for the host: {error}")
    torch.testing.assert_close(result, fp8.multiply_reference(*operands).bfloat16(), rtol=2**-7, atol=1e-3)


def test_ordinary_weights_are_converted_where_sizes_allow() -> None:
    assert scheme() is not None and scheme().stored == {}
    assert scheme(size_in=40) is None and scheme(size_out=1) is None
    assert scheme(role="router") is None and scheme(role="experts") is None
    assert scheme(role="head") is None and scheme(role="head", head=True) is not None


def test_tensors_of_a_checkpoint() -> None:
    result = scheme({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]})
    assert result is not None
    weight, scale = result.stored["weight"], result.stored["weight_scale"]
    assert (weight.shape, weight.dtype) == ((32, 64), torch.float8_e4m3fn)
    assert (scale.shape, scale.dtype, scale.one_per_part) == ((32, 1), torch.float32, False)
    result = scheme({"quant_method": "fp8"})
    assert result is not None and result.stored["weight_scale"].one_per_part


def test_products_of_a_kernel_set_on_the_host(caplog: pytest.LogCaptureFixture) -> None:
    weights: list[QuantizedWeight] = []

    def take(weight: QuantizedWeight, bias: torch.Tensor | None, dtype: torch.dtype) -> LinearFunction | None:
        weights.append(weight)
        return None if bias is None else lambda x: x

    kernels = dataclasses.replace(TORCH, pack_quantized=take)
    for config in ({"quant_method": "fp8"}, {"quant_method": "fp8", "weight_block_size": [16, 16]}):
        built = fp8.build(request(stored=config, kernels=kernels), Fp8Settings())
        scheme = built.scheme(matrix())
        assert scheme is not None
        held = {name: torch.ones(tensor.shape).to(tensor.dtype) for name, tensor in scheme.stored.items()}
        x = torch.randn(2, 64).bfloat16()
        assert scheme.pack(held, torch.zeros(32))(x) is x
        assert scheme.pack(held, None)(x).shape == (2, 32)
    assert [item.group for item in weights] == [64, 64, 16, 16]
    assert "dequantized for each use" not in caplog.text
    fp8.build(request(stored={"quant_method": "fp8"}), Fp8Settings())
    assert "dequantized for each use" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size_in": 40}, "'a.qkv' is 32 by 40: in FP8 both must be multiples of 16"),
    ],
)
def test_matrices_of_a_checkpoint_that_cannot_be_served(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scheme({"quant_method": "fp8"}, **changes)


def test_an_old_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "A100")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (8, 0))
    with pytest.raises(ConfigError, match=r"needs a GPU of compute capability 8.9 or later, but A100 has 8.0"):
        fp8.build(request(device=torch.device("cuda")), Fp8Settings())
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    assert fp8.build(request(device=torch.device("cuda")), Fp8Settings()).name == "fp8"
