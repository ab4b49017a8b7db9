"""The library gets addresses only, so tensors must have the sizes and layouts that it reads and writes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug import Kernels, SamplingParams
from sglang_plug.contracts.model import kernels as definitions
from sglang_plug.ops import sampling as sampling_definitions
from sglang_plug.ops.sampling import SamplingOptions
from sglang_plug_backends.avx512 import kernels

pytestmark = pytest.mark.usefixtures("compiled")


@pytest.fixture
def built() -> Kernels:
    return kernels.build()


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(1)


@pytest.fixture
def narrow_default() -> Iterator[None]:
    """Change the default dtype, as another thread does while it builds a model in bfloat16."""
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(torch.float32)


def sampled(built: Kernels, logits: Tensor, uniform: Tensor) -> Tensor:
    params = [SamplingParams(temperature=0.7)] * len(logits)
    return built.sample_tokens(logits, SamplingOptions.of(params, logits.shape[1], lambda item: item), uniform)


@pytest.mark.usefixtures("narrow_default")
@pytest.mark.parametrize(("size_out", "size_in"), [(64, 48), (1, 7), (2048, 20)])
def test_int8_does_not_depend_on_the_default_dtype(built: Kernels, size_out: int, size_in: int) -> None:
    assert built.pack_int8 is not None
    weight = torch.randint(-127, 128, (size_out, size_in), dtype=torch.int8)
    x, scale = torch.randn(3, size_in, dtype=torch.float32).bfloat16(), torch.full((size_out,), 0.01)
    result = built.pack_int8(weight, scale, None)(x)
    expected = x.float() @ (weight.float() * scale.float()[:, None]).T
    torch.testing.assert_close(result.float(), expected, atol=0.05, rtol=0.02)


@pytest.mark.usefixtures("narrow_default")
def test_samples_do_not_depend_on_the_default_dtype(built: Kernels) -> None:
    logits, uniform = torch.randn(30, 9000, dtype=torch.float32), torch.rand(30, dtype=torch.float64)
    narrow = sampled(built, logits, uniform)
    torch.set_default_dtype(torch.float32)
    assert torch.equal(narrow, sampled(built, logits, uniform))


def test_matrices_with_gaps_are_packed(built: Kernels) -> None:
    """The contiguous copy of a strided matrix must stay alive until it is packed."""
    assert built.pack_int8 is not None
    wide, x = torch.randint(-9, 10, (600, 1400), dtype=torch.int8), torch.randn(2, 700).bfloat16()
    result = built.pack_int8(wide[:, ::2], torch.ones(600), None)(x)
    assert torch.equal(result, built.pack_int8(wide[:, ::2].contiguous(), torch.ones(600), None)(x))
    matrix = torch.randn(700, 600).bfloat16()
    torch.testing.assert_close(
        built.pack_linear(matrix.T, None)(x).float(), F.linear(x.float(), matrix.T.float()), atol=0.5, rtol=0.02
    )


def test_a_bias_may_be_wider_or_have_gaps(built: Kernels) -> None:
    weight, x, bias = torch.randn(40, 16).bfloat16(), torch.randn(3, 16).bfloat16(), torch.randn(80)[::2]
    plain = built.pack_linear(weight, None)(x).float()
    torch.testing.assert_close(built.pack_linear(weight, bias)(x).float(), plain + bias, atol=0.05, rtol=0.02)


def test_options_with_gaps_are_read(built: Kernels) -> None:
    logits, uniform = torch.randn(40, 300), torch.rand(80, dtype=torch.float64)[::2]
    assert torch.equal(sampled(built, logits, uniform), sampled(built, logits, uniform.clone()))


@pytest.mark.parametrize("x", [torch.zeros(2, 16), torch.zeros(2, 14).bfloat16(), torch.zeros(16).bfloat16()])
def test_products_refuse_what_they_would_read_beyond(built: Kernels, x: Tensor) -> None:
    assert built.pack_int8 is not None
    for multiply in (
        built.pack_linear(torch.zeros(4, 16).bfloat16(), None),
        built.pack_int8(torch.zeros(4, 16, dtype=torch.int8), torch.ones(4), None),
    ):
        with pytest.raises(ValueError, match=r"\[T, 16\] in bfloat16"):
            multiply(x)


def test_a_bias_of_another_length_is_refused(built: Kernels) -> None:
    with pytest.raises(ValueError, match="the bias must have 4 numbers"):
        built.pack_linear(torch.zeros(4, 16).bfloat16(), torch.zeros(3).bfloat16())


def test_positions_in_other_layouts_are_read(built: Kernels) -> None:
    """``sin`` and ``cos`` may be views of one tensor; for a ``sin`` of another dtype the definition is used."""
    x, angles = torch.randn(5, 2, 32).bfloat16(), torch.randn(5, 64).bfloat16()
    cos, sin = angles.chunk(2, -1)
    expected = definitions.apply_rope(x.float(), cos.float(), sin.float())
    torch.testing.assert_close(built.apply_rope(x, cos, sin).float(), expected, atol=0.05, rtol=0.02)
    result = built.apply_rope(x, cos, sin.float())
    torch.testing.assert_close(result.float(), expected, atol=0.05, rtol=0.02)


def test_a_residual_in_float32_is_left_to_the_definition(built: Kernels) -> None:
    x, residual, weight = torch.randn(3, 24).bfloat16(), torch.randn(3, 24), torch.ones(24).bfloat16()
    expected = definitions.add_rms_norm(x, residual.clone(), weight, 1e-6)
    result = built.add_rms_norm(x, residual, weight, 1e-6)
    torch.testing.assert_close(result, expected)


def test_masks_and_logits_of_other_dtypes_are_left_to_the_definition(built: Kernels) -> None:
    logits, mask = torch.randn(2, 64).double(), torch.tensor([[1, 2], [-1, 0]], dtype=torch.int32)
    expected = sampling_definitions.mask_logits(logits.clone(), None, mask)
    assert torch.equal(built.mask_logits(logits.clone(), None, mask), expected)
