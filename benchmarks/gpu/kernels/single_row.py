"""Rate of multiplying one row, by the library and by Triton's kernel, as in decoding one sequence."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ordered
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from benchmarks.common.models import SHAPES

if TYPE_CHECKING:
    from sglang_plug_backends.triton.matrix_vector import Time  # only where Triton is

KERNEL_BOUND = 2e-2
"""Maximum relative error in bfloat16."""


@torch.inference_mode()
def rows(device: str, *shapes: str, seconds_of: Time | None = None) -> dict[str, Any]:
    """Return for each matrix of each shape the bytes per second of the library and of the best tiles, and the tiles.

    ``seconds_of`` times products; on a GPU by default.
    """
    from sglang_plug.contracts.model import kernels as definitions
    from sglang_plug_backends.triton.matrix_vector import RowProducts, seconds_each  # only where Triton is

    results: dict[str, Any] = {}
    for name in shapes:
        for matrix, (size_out, size_in, gated) in _matrices(name).items():
            weight = torch.randn(size_out, size_in, device=device, dtype=torch.bfloat16) / size_in**0.5
            times: dict[str, float] = {}

            def timed(products: Ordered[Callable[[], Tensor]], times: dict[str, float] = times) -> float:
                seconds = (seconds_of or seconds_each)(products)
                tiles = getattr(products[0], "keywords", {}).get("tiles")
                times["library" if tiles is None else str(tiles)] = seconds
                return seconds

            products = RowProducts(definitions.silu_mul, timed, overlap=True)
            multiply = (products.pack_gated if gated else products.pack_linear)(weight, None)
            x = torch.randn(1, size_in, device=device, dtype=torch.bfloat16)
            wide = torch.nn.functional.linear(x.double(), weight.double())
            wide = definitions.silu_mul(wide) if gated else wide
            error = float((multiply(x).double() - wide).norm() / wide.norm())
            if not error <= KERNEL_BOUND:
                raise AssertionError(f"{name}, {matrix}: relative error {error:.2e}, more than {KERNEL_BOUND}")
            best = min(times, key=times.__getitem__)
            results[f"{name}, {matrix}"] = {
                "library_rate": weight.nbytes / times["library"],
                "best_rate": weight.nbytes / times[best],
                "best": best,
                "seconds": times,
            }
    return results


def _matrices(name: str) -> dict[str, tuple[int, int, bool]]:
    """Return the size of each matrix in a decode step, and whether its first half is a gate, by name."""
    shape = SHAPES[name]
    heads = (shape.heads + 2 * shape.kv_heads) * shape.dim
    return {
        "qkv": (heads, shape.hidden, False),
        "out": (shape.hidden, shape.heads * shape.dim, False),
        "gate and up": (2 * shape.intermediate, shape.hidden, True),
        "down": (shape.hidden, shape.intermediate, False),
        "head": (shape.vocabulary, shape.hidden, False),
    }
