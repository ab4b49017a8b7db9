"""Correctness of Triton's kernel set on the device, against the definitions in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug import AttentionShape, KVPool, LowRank, LowRankPart, LowRankTable
from sglang_plug.contracts.model import kernels as definitions
from sglang_plug.contracts.model.kernels import Kernels
from sglang_plug.ops.lora import add_low_rank

BOUNDS = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""Maximum relative error by dtype."""
FLOAT8_BOUNDS: dict[torch.dtype | None, float] = {torch.float8_e4m3fn: 0.05, torch.float8_e5m2: 0.08}
"""Maximum relative error of values rounded to float8, which may be rounded in different directions."""
Call = tuple[str, Callable[..., Any], Callable[..., Any], tuple[Any, ...]]
"""Name, kernel, definition and arguments of a call."""


@torch.inference_mode()
def kernels(device: str) -> dict[str, Any]:
    """Return the largest relative error of each kernel over a grid of shapes and dtypes; raises if one is too large."""
    from sglang_plug_backends.triton.kernel_set import build  # only where Triton is

    torch.manual_seed(11)
    worst: dict[str, float] = {}
    for dtype, bound in BOUNDS.items():
        for name, kernel, definition, arguments in _calls(build(), device, dtype):
            wide = [argument.double() if _is_float(argument) else argument for argument in arguments]
            expected = _first(definition(*wide))
            error = relative_error(_first(kernel(*arguments)), expected)
            if not error <= bound:
                shapes = [list(argument.shape) for argument in arguments if isinstance(argument, Tensor)]
                raise AssertionError(f"{name} in {dtype} of {shapes}: relative error {error:.2e}, more than {bound}")
            worst[f"{name} {dtype}"] = max(worst.get(f"{name} {dtype}", 0.0), error)
        worst |= _rope_store(build(), device, dtype, bound)
        worst |= _low_rank(build(), device, dtype, bound)
    return worst


def _rope_store(kernels: Kernels, device: str, dtype: torch.dtype, bound: float) -> dict[str, float]:
    """Return errors of queries, keys and the pool's content, in the model's dtype and in float8."""
    assert kernels.rope_store is not None
    results: dict[str, float] = {}
    for kv_dtype in (None, torch.float8_e4m3fn, torch.float8_e5m2):
        for tokens, heads, kv_heads, dim, width in ((1, 32, 8, 128, 128), (130, 14, 2, 64, 64), (9, 12, 12, 80, 32)):
            qkv = torch.randn(tokens, heads + 2 * kv_heads, dim, device=device).to(dtype)
            qkv[0, -1, :2] = torch.tensor([1e4, -1e4])  # beyond what float8_e4m3fn holds
            q, k, v = qkv.tensor_split((heads, heads + kv_heads), dim=1)
            angles = torch.rand(tokens, width // 2, device=device).repeat(1, 2) * 6
            cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
            slots = torch.randperm(200, device=device)[:tokens]
            shape = AttentionShape(heads=heads, kv_heads=kv_heads, dim=dim, layers=2, kv_dtype=kv_dtype)
            pools = [KVPool.of(shape, slots=200, dtype=dtype, device=torch.device(device)) for _ in range(2)]
            for pool in pools:
                pool.k_scale[1], pool.v_scale[1] = 0.5, 0.25
            mine = kernels.rope_store(q, k, v, cos, sin, pools[0], 1, slots)
            theirs = definitions.rope_store(q, k, v, cos, sin, pools[1], 1, slots)
            kept = [(pools[0].k[1], pools[1].k[1]), (pools[0].v[1], pools[1].v[1])]
            errors = [relative_error(*pair) for pair in (*zip(mine, theirs, strict=True), *kept)]
            if not (max(errors[:2]) <= bound and max(errors[2:]) <= max(bound, FLOAT8_BOUNDS.get(kv_dtype, 0.0))):
                raise AssertionError(f"rope_store in {dtype} to a pool in {kv_dtype}: relative errors {errors}")
            name = f"rope_store {dtype} {kv_dtype or ''}".strip()
            results[name] = max(results.get(name, 0.0), *errors)
    return results


def _low_rank(kernels: Kernels, device: str, dtype: torch.dtype, bound: float) -> dict[str, float]:
    """Return errors of LoRA products, including an adapter that was loaded after others."""
    assert kernels.add_low_rank is not None
    results: dict[str, float] = {}
    for rows, size, widths, rank in (
        (1, 4096, (4096, 1024, 1024), 16),
        (64, 2048, (8192, 8192), 8),
        (7, 512, (64,), 96),
    ):
        starts = [0, *accumulate(widths)]
        columns = [slice(*pair) for pair in pairwise(starts)]
        table = LowRankTable(columns, size, slots=4, dtype=dtype, device=torch.device(device))
        for slot in (1, 2, 4):
            down = (torch.randn(rank * len(widths), size, device=device) / size**0.5).to(dtype)
            parts = [
                LowRankPart(
                    columns=own,
                    ranks=slice(rank * number, rank * (number + 1)),
                    up=torch.randn(rank, own.stop - own.start, device=device).to(dtype),
                    scale=2.0,
                )
                for number, own in enumerate(columns)
            ]
            table.put(slot, LowRank(down=down, parts=tuple(parts)))
        x, slots = torch.randn(rows, size, device=device).to(dtype), torch.arange(1, rows + 1, device=device) % 5
        mine = torch.zeros(rows, starts[-1], device=device, dtype=dtype)
        theirs = mine.to(torch.float32, copy=True)
        kernels.add_low_rank(x, mine, table, slots)
        add_low_rank(x, theirs, table, slots)
        error = relative_error(mine, theirs)
        if not error <= bound:
            raise AssertionError(f"add_low_rank in {dtype} of {rows} x {size}: relative error {error:.2e}")
        results[f"add_low_rank {dtype}"] = max(results.get(f"add_low_rank {dtype}", 0.0), error)
    return results


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return the norm of the difference over the norm of ``expected``; NaN if any value is."""
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


def _calls(kernels: Kernels, device: str, dtype: torch.dtype) -> Iterator[Call]:
    from sglang_plug_backends.triton.matrix_vector import TILES, multiply_row  # only where Triton is

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device).to(dtype)

    for rows, size in ((1, 64), (3, 2048), (130, 4096), (7, 5120)):
        x, weight = draw(rows, size), draw(size)
        yield "rms_norm", kernels.rms_norm, definitions.rms_norm, (x, weight, 1e-5)
        yield (
            "add_rms_norm",
            kernels.add_rms_norm,
            definitions.add_rms_norm,
            (draw(rows, size), x.clone(), weight, 1e-5),
        )
        yield "silu_mul", kernels.silu_mul, definitions.silu_mul, (x,)
    if dtype != torch.float32:
        for rows, size, gated in ((130, 1500, False), (130, 1500, True), (6144, 4096, False)):
            arguments = (draw(rows, size), draw(rows), draw(1, size))
            for tiles in TILES:
                kernel = partial(multiply_row, gated=gated, tiles=tiles, overlap=True)
                yield "one row", kernel, partial(_row, gated=gated), arguments
    for tokens, heads, dim, width in ((1, 40, 128, 128), (130, 10, 64, 64), (9, 12, 80, 32)):
        angles = torch.rand(tokens, width // 2, device=device).repeat(1, 2) * 6
        view = draw(tokens, heads + 8, dim)[:, :heads]
        arguments = (view, angles.cos().to(dtype), angles.sin().to(dtype))
        yield "apply_rope", kernels.apply_rope, definitions.apply_rope, arguments
    for tokens, count, chosen in ((1, 8, 2), (100, 60, 4), (700, 8, 2), (3000, 16, 2)):
        experts = torch.rand(tokens, count, device=device).topk(chosen).indices
        gate_up, down = draw(count, 2 * 384, 512) / 16, draw(count, 512, 384) / 16
        arguments = (draw(tokens, 512), gate_up, down, experts, torch.rand(tokens, chosen, device=device))
        yield "moe", kernels.moe, definitions.moe, arguments


def _row(weight: Tensor, bias: Tensor, x: Tensor, *, gated: bool) -> Tensor:
    result = F.linear(x, weight, bias)
    return definitions.silu_mul(result) if gated else result


def _is_float(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _first(output: Any) -> Tensor:
    result: Tensor = output[0] if isinstance(output, tuple) else output
    return result
