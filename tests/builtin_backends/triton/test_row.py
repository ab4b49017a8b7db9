"""Which way of multiplying one row is taken; the kernel itself is in ``test_kernels``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Ordered
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

os.environ.setdefault("TRITON_INTERPRET", "0")
pytest.importorskip("triton", reason="Triton is not installed")

from sglang_plug import kernels as definitions
from sglang_plug_backends.triton import row
from sglang_plug_backends.triton.row import TILES, RowProducts, Tiles


class Clock:
    """Seconds by tiles, ``None`` being the library; what is not named takes an hour, what is an error is raised."""

    def __init__(self, times: Mapping[Tiles | None, float | Exception]) -> None:
        self.times, self.asked = times, 0

    def __call__(self, products: Ordered[Callable[[], Tensor]]) -> float:
        self.asked += 1
        product: Any = products[0]
        found = self.times.get(product.keywords.get("tiles"), 3600.0)
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def multiplied(monkeypatch: pytest.MonkeyPatch) -> list[Tiles]:
    """With which tiles the kernel was called."""
    found: list[Tiles] = []

    def multiply(weight: Tensor, bias: Tensor | None, x: Tensor, *, gated: bool, tiles: Tiles, overlap: bool) -> Tensor:
        found.append(tiles)
        return x.new_full((1, len(weight)), 7.0)

    monkeypatch.setattr(row, "multiply_row", multiply)
    return found


def weight(rows: int = 8, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(rows, 16, generator=torch.Generator().manual_seed(rows)).to(dtype)


def products(times: Mapping[Tiles | None, float | Exception]) -> tuple[RowProducts, Clock]:
    clock = Clock(times)
    return RowProducts(definitions.silu_mul, clock), clock


def test_the_fastest_is_taken_for_one_row(multiplied: list[Tiles]) -> None:
    made, clock = products({None: 1.0, TILES[1]: 0.8, TILES[2]: 0.7, TILES[3]: 0.9})
    one = weight()
    multiply = made.pack_linear(one, None)
    assert multiply(one[:1]).tolist() == [[7.0] * 8] and multiplied == [TILES[2]]
    assert torch.equal(multiply(one[:3]), F.linear(one[:3], one))
    assert torch.equal(multiply(one[:0]), F.linear(one[:0], one))
    assert multiplied == [TILES[2]] and clock.asked == 1 + len(TILES)


@pytest.mark.parametrize("best", [0.98, 1.5])
def test_the_library_is_kept_unless_something_is_clearly_faster(best: float, multiplied: list[Tiles]) -> None:
    made, _ = products({None: 1.0, TILES[0]: best})
    one, bias = weight(), weight(1)[0, :8]
    assert torch.equal(made.pack_linear(one, bias)(one[:1]), F.linear(one[:1], one, bias))
    gated = definitions.silu_mul(F.linear(one[:1], one, bias))
    assert torch.equal(made.pack_gated(one, bias)(one[:1]), gated) and gated.shape == (1, 4)
    assert multiplied == []


def test_each_kind_is_measured_once() -> None:
    made, clock = products({None: 1.0})
    for _ in range(3):
        made.pack_linear(weight(), None)
    assert clock.asked == 1 + len(TILES)
    made.pack_gated(weight(), None)
    made.pack_linear(weight(), weight(1)[0, :8])
    made.pack_linear(weight(dtype=torch.float16), None)
    made.pack_linear(weight(4), None)
    assert clock.asked == 5 * (1 + len(TILES))


def test_what_cannot_be_run_is_left_out(multiplied: list[Tiles]) -> None:
    made, _ = products({None: 1.0, TILES[0]: RuntimeError("too much shared memory"), TILES[1]: 0.5})
    made.pack_linear(weight(), None)(weight()[:1])
    assert multiplied == [TILES[1]]
    made, _ = products({None: 1.0, TILES[0]: torch.cuda.OutOfMemoryError(), TILES[1]: 0.5})
    made.pack_linear(weight(), None)(weight()[:1])
    assert multiplied == [TILES[1]], "without memory nothing is tried"


def test_what_the_kernel_does_not_serve_goes_to_the_library(multiplied: list[Tiles]) -> None:
    made, clock = products({None: 1.0, TILES[0]: 0.5})
    wide, view = weight(dtype=torch.float32), weight()[:, ::2]
    assert torch.equal(made.pack_linear(wide, None)(wide[:1]), F.linear(wide[:1], wide))
    assert torch.equal(made.pack_linear(view, None)(view[:1]), F.linear(view[:1], view))
    assert clock.asked == 0
    one = weight()
    multiply = made.pack_linear(one, None)
    strided = torch.stack((one[:1], one[:1]), dim=-1)[..., 0]
    assert torch.equal(multiply(strided), F.linear(one[:1], one)) and multiplied == []


def test_nothing_is_measured_on_a_cpu() -> None:
    one = weight()
    assert torch.equal(RowProducts(definitions.silu_mul).pack_linear(one, None)(one[:1]), F.linear(one[:1], one))
