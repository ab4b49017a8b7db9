"""The choice of the multiplication for one row; the kernel itself is tested in ``test_kernel_set``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Ordered
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("triton", reason="Triton is not installed")

from sglang_plug.contracts.model import kernels as definitions
from sglang_plug_backends.triton.matrix_vector import TILES, RowProducts, Tiles


class Clock:
    """A clock that returns the configured seconds of a kernel by its tiles, ``None`` for the library; missing ones take
    an hour."""

    def __init__(self, times: Mapping[Tiles | None, float | Exception]) -> None:
        self.times, self.calls = times, 0

    def __call__(self, products: Ordered[Callable[[], Tensor]]) -> float:
        self.calls += 1
        product: Any = products[0]
        result = self.times.get(product.keywords.get("tiles"), 3600.0)
        if isinstance(result, Exception):
            raise result
        return result


class Multiplied(list[Tiles]):
    """A kernel that records the tiles with which it is called."""

    def multiply(
        self, weight: Tensor, bias: Tensor | None, x: Tensor, *, gated: bool, tiles: Tiles, overlap: bool
    ) -> Tensor:
        self.append(tiles)
        return x.new_full((1, len(weight)), 7.0)


@pytest.fixture
def multiplied() -> Multiplied:
    return Multiplied()


def weight(rows: int = 8, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(rows, 16, generator=torch.Generator().manual_seed(rows)).to(dtype)


def products(times: Mapping[Tiles | None, float | Exception], multiplied: Multiplied) -> tuple[RowProducts, Clock]:
    clock = Clock(times)
    return RowProducts(definitions.silu_mul, clock, multiply=multiplied.multiply), clock


def test_the_fastest_is_taken_for_one_row(multiplied: Multiplied) -> None:
    packer, clock = products({None: 1.0, TILES[1]: 0.8, TILES[2]: 0.7, TILES[3]: 0.9}, multiplied)
    matrix = weight()
    multiply = packer.pack_linear(matrix, None)
    assert multiply(matrix[:1]).tolist() == [[7.0] * 8] and multiplied == [TILES[2]]
    assert torch.equal(multiply(matrix[:3]), F.linear(matrix[:3], matrix))
    assert torch.equal(multiply(matrix[:0]), F.linear(matrix[:0], matrix))
    assert multiplied == [TILES[2]] and clock.calls == 1 + len(TILES)


@pytest.mark.parametrize("best", [0.98, 1.5])
def test_the_library_is_kept_unless_something_is_clearly_faster(best: float, multiplied: Multiplied) -> None:
    packer, _ = products({None: 1.0, TILES[0]: best}, multiplied)
    matrix, bias = weight(), weight(1)[0, :8]
    assert torch.equal(packer.pack_linear(matrix, bias)(matrix[:1]), F.linear(matrix[:1], matrix, bias))
    gated = definitions.silu_mul(F.linear(matrix[:1], matrix, bias))
    assert torch.equal(packer.pack_gated(matrix, bias)(matrix[:1]), gated) and gated.shape == (1, 4)
    assert multiplied == []


def test_each_kind_is_measured_once(multiplied: Multiplied) -> None:
    packer, clock = products({None: 1.0}, multiplied)
    for _ in range(3):
        packer.pack_linear(weight(), None)
    assert clock.calls == 1 + len(TILES)
    packer.pack_gated(weight(), None)
    packer.pack_linear(weight(), weight(1)[0, :8])
    packer.pack_linear(weight(dtype=torch.float16), None)
    packer.pack_linear(weight(4), None)
    assert clock.calls == 5 * (1 + len(TILES))


def test_parts_that_cannot_run_are_left_out(multiplied: Multiplied) -> None:
    packer, _ = products({None: 1.0, TILES[0]: RuntimeError("too much shared memory"), TILES[1]: 0.5}, multiplied)
    packer.pack_linear(weight(), None)(weight()[:1])
    assert multiplied == [TILES[1]]
    packer, _ = products({None: 1.0, TILES[0]: torch.cuda.OutOfMemoryError(), TILES[1]: 0.5}, multiplied)
    packer.pack_linear(weight(), None)(weight()[:1])
    assert multiplied == [TILES[1]], "without memory nothing is tried"


def test_what_the_kernel_does_not_serve_goes_to_the_library(multiplied: Multiplied) -> None:
    packer, clock = products({None: 1.0, TILES[0]: 0.5}, multiplied)
    wide, view = weight(dtype=torch.float32), weight()[:, ::2]
    assert torch.equal(packer.pack_linear(wide, None)(wide[:1]), F.linear(wide[:1], wide))
    assert torch.equal(packer.pack_linear(view, None)(view[:1]), F.linear(view[:1], view))
    assert clock.calls == 0
    matrix = weight()
    multiply = packer.pack_linear(matrix, None)
    strided = torch.stack((matrix[:1], matrix[:1]), dim=-1)[..., 0]
    assert torch.equal(multiply(strided), F.linear(matrix[:1], matrix)) and multiplied == []


def test_nothing_is_measured_on_a_cpu() -> None:
    matrix = weight()
    assert torch.equal(
        RowProducts(definitions.silu_mul).pack_linear(matrix, None)(matrix[:1]), F.linear(matrix[:1], matrix)
    )
