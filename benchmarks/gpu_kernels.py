"""Triton's kernel set on the device itself, against the definitions in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from sglang_plug import kernels as definitions
from sglang_plug.kernels import Kernels

BOUNDS = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""dtype -> relative error that is allowed."""
Call = tuple[str, Callable[..., Any], Callable[..., Any], tuple[Any, ...]]
"""Name, kernel, definition, arguments."""


@torch.inference_mode()
def kernels(device: str) -> dict[str, Any]:
    """The largest relative error of each kernel over a grid of shapes and dtypes; raises if one is too large."""
    from sglang_plug_backends.triton.kernels import build  # only where Triton is

    torch.manual_seed(11)
    worst: dict[str, float] = {}
    for dtype, bound in BOUNDS.items():
        for name, kernel, definition, arguments in _calls(build(), device, dtype):
            wide = [one.double() if _is_float(one) else one for one in arguments]
            expected = _first(definition(*wide))
            error = relative_error(_first(kernel(*arguments)), expected)
            if not error <= bound:
                shapes = [list(one.shape) for one in arguments if isinstance(one, Tensor)]
                raise AssertionError(f"{name} in {dtype} of {shapes}: relative error {error:.2e}, more than {bound}")
            worst[f"{name} {dtype}"] = max(worst.get(f"{name} {dtype}", 0.0), error)
    return worst


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm of ``expected``; NaN if anything is."""
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def _calls(made: Kernels, device: str, dtype: torch.dtype) -> Iterator[Call]:
    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device).to(dtype)

    for rows, size in ((1, 64), (3, 2048), (130, 4096), (7, 5120)):
        x, weight = draw(rows, size), draw(size)
        yield "rms_norm", made.rms_norm, definitions.rms_norm, (x, weight, 1e-5)
        yield "add_rms_norm", made.add_rms_norm, definitions.add_rms_norm, (draw(rows, size), x.clone(), weight, 1e-5)
        yield "silu_mul", made.silu_mul, definitions.silu_mul, (x,)
    for tokens, heads, dim, width in ((1, 40, 128, 128), (130, 10, 64, 64), (9, 12, 80, 32)):
        angles = torch.rand(tokens, width // 2, device=device).repeat(1, 2) * 6
        view = draw(tokens, heads + 8, dim)[:, :heads]
        arguments = (view, angles.cos().to(dtype), angles.sin().to(dtype))
        yield "apply_rope", made.apply_rope, definitions.apply_rope, arguments
    for tokens, count, chosen in ((1, 8, 2), (100, 60, 4), (700, 8, 2), (3000, 16, 2)):
        experts = torch.rand(tokens, count, device=device).topk(chosen).indices
        gate_up, down = draw(count, 2 * 384, 512) / 16, draw(count, 512, 384) / 16
        arguments = (draw(tokens, 512), gate_up, down, experts, torch.rand(tokens, chosen, device=device))
        yield "moe", made.moe, definitions.moe, arguments


def _is_float(one: object) -> bool:
    return isinstance(one, Tensor) and one.is_floating_point()


def _first(found: Any) -> Tensor:
    result: Tensor = found[0] if isinstance(found, tuple) else found
    return result
