"""Conformance test of the functions of a kernel set that layers compute with: products, norms, rotation, experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug.contracts.model import kernels as definitions
from sglang_plug.contracts.model.batch import KVPool
from sglang_plug.contracts.model.kernels import TORCH, Kernels

ROWS = (1, 2, 7, 65)
"""Tokens of a step."""
WIDTHS = (64, 80)
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Greatest error of a row, relative to its norm."""
EPS = 1e-5
EXPERTS, CHOSEN = 4, 2
HEADS, KV_HEADS, DIM = 4, 2, 32


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of one function, and what its definition gives."""

    name: str
    actual: Callable[[], Tensor | tuple[Tensor, ...]]
    expected: tuple[Tensor, ...]


@torch.inference_mode()
def check_kernel_functions(kernels: Kernels, *, device: str = "cpu") -> None:
    """Compare products, norms, activations, rotation and experts with their definitions, in float32 and bfloat16.

    Steps have one token and several; inputs are parts of wider tensors, as in models.

    Args:
        kernels: the kernel set whose ``pack_linear``, ``pack_gated``, ``rms_norm``, ``add_rms_norm``, ``silu_mul``,
            ``apply_rope``, ``rope_store``, ``moe`` and ``biased_moe`` are checked.
        device: the device to compute on.

    Raises:
        AssertionError: names the first function that fails, and how.
    """
    generator = torch.Generator().manual_seed(7)
    for dtype in BOUNDS:
        for rows in ROWS:
            inputs = _Inputs(generator, rows, dtype, device)
            for call in _calls(kernels, inputs):
                _compare(call, rows, dtype)


class _Inputs:
    """Makes random tensors whose rows are parts of wider ones."""

    def __init__(self, generator: torch.Generator, rows: int, dtype: torch.dtype, device: str) -> None:
        self._generator, self.rows, self.dtype, self.device = generator, rows, dtype, device

    def tensor(self, *shape: int) -> Tensor:
        """Return a tensor of its own."""
        return torch.randn(shape, generator=self._generator).to(self.device, self.dtype)

    def part(self, *shape: int) -> Tensor:
        """Return ``[rows, *shape]``, a part of a wider tensor."""
        size = torch.Size(shape).numel()
        return self.tensor(self.rows, 2 * size)[:, size:].view(self.rows, *shape)

    def experts(self) -> tuple[Tensor, Tensor]:
        """Return the experts of each token, and their weights."""
        scores = torch.rand(self.rows, EXPERTS, generator=self._generator)
        weights, experts = scores.topk(CHOSEN)
        return experts.to(self.device), weights.to(self.device)


def _calls(kernels: Kernels, inputs: _Inputs) -> Iterator[_Call]:
    for width in WIDTHS:
        yield from _products(kernels, inputs, width)
        yield from _norms(kernels, inputs, width)
    yield from _rotations(kernels, inputs)
    yield from _expert_calls(kernels, inputs)


def _products(kernels: Kernels, inputs: _Inputs, width: int) -> Iterator[_Call]:
    x, gate_up = inputs.part(width), inputs.part(2 * width)
    weight = inputs.tensor(2 * 48, width) * width**-0.5
    for bias in (None, inputs.tensor(2 * 48)):
        product = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
        packed = kernels.pack_linear(weight.clone(), None if bias is None else bias.clone())
        yield _Call("pack_linear", lambda packed=packed: packed(x), (product,))  # type: ignore[misc]
        if kernels.pack_gated is not None:
            gated = kernels.pack_gated(weight.clone(), None if bias is None else bias.clone())
            yield _Call("pack_gated", lambda gated=gated: gated(x), (TORCH.silu_mul(product),))  # type: ignore[misc]
    yield _Call("silu_mul", lambda: kernels.silu_mul(gate_up), (TORCH.silu_mul(gate_up.double()),))


def _norms(kernels: Kernels, inputs: _Inputs, width: int) -> Iterator[_Call]:
    x, residual, heads = inputs.part(width), inputs.part(width), inputs.part(HEADS, width)
    for weight in (inputs.tensor(width), inputs.tensor(width).float()):
        for name, value in (("rms_norm", x), ("rms_norm of heads", heads)):
            expected = TORCH.rms_norm(value, weight, EPS)
            yield _Call(name, lambda v=value, w=weight: kernels.rms_norm(v, w, EPS), (expected,))  # type: ignore[misc]
        both = TORCH.add_rms_norm(x, residual, weight, EPS)
        yield _Call(
            "add_rms_norm",
            lambda w=weight: kernels.add_rms_norm(x.clone(), residual.clone(), w, EPS),  # type: ignore[misc]
            both,
        )


def _rotations(kernels: Kernels, inputs: _Inputs) -> Iterator[_Call]:
    q, k, v = inputs.part(HEADS, DIM), inputs.part(KV_HEADS, DIM), inputs.part(KV_HEADS, DIM)
    for width in (DIM, DIM // 2):
        angles = inputs.tensor(inputs.rows, width // 2).repeat(1, 2)
        cos, sin = angles.cos(), angles.sin()
        for name, x in (("apply_rope", q), ("apply_rope of keys", k)):
            expected = (TORCH.apply_rope(x, cos, sin),)
            yield _Call(f"{name}, {width} of {DIM} columns", lambda x=x: kernels.apply_rope(x, cos, sin), expected)  # type: ignore[misc]  # noqa: B023
        if kernels.rope_store is not None:
            yield _Call(
                f"rope_store, {width} of {DIM} columns",
                lambda store=kernels.rope_store: _stored(store, q, k, v, cos, sin),  # type: ignore[misc]  # noqa: B023
                _stored(definitions.rope_store, q, k, v, cos, sin),
            )


def _stored(store: Any, q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    """Return the rotated queries and keys, and both halves of the pool's second layer."""
    rows = len(q)
    pool = KVPool(
        layers=2, slots=2 * rows + 1, kv_heads=KV_HEADS, dim=DIM, value_dim=DIM, dtype=q.dtype, device=q.device
    )
    slots = torch.arange(rows, device=q.device).flip(0) * 2 + 1
    rotated = store(q.clone(), k.clone(), v.clone(), cos, sin, pool, 1, slots)
    assert not bool(pool.k[0].any()) and not bool(pool.v[0].any()), "rope_store wrote to another layer"
    return (*rotated, pool.k[1].flatten(1), pool.v[1].flatten(1))


def _expert_calls(kernels: Kernels, inputs: _Inputs) -> Iterator[_Call]:
    width, between = WIDTHS[0], 48
    x, (experts, weights) = inputs.part(width), inputs.experts()
    gate_up = inputs.tensor(EXPERTS, 2 * between, width) * width**-0.5
    down = inputs.tensor(EXPERTS, width, between) * between**-0.5
    expected = (TORCH.moe(x, gate_up, down, experts, weights),)
    yield _Call("moe", lambda: kernels.moe(x, gate_up, down, experts, weights), expected)
    biases = inputs.tensor(EXPERTS, 2 * between), inputs.tensor(EXPERTS, width)
    for first, second in ((None, None), biases, (biases[0], None)):
        arguments = (x, gate_up, down, first, second, experts, weights, _gelu_mul)
        yield _Call(
            "biased_moe",
            lambda arguments=arguments: kernels.biased_moe(*arguments),  # type: ignore[misc]
            (TORCH.biased_moe(*arguments),),
        )


def _gelu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, -1)
    return F.gelu(gate) * up


def _compare(call: _Call, rows: int, dtype: torch.dtype) -> None:
    where = f"{call.name} of {rows} tokens in {dtype}"
    try:
        result = call.actual()
    except Exception as error:
        raise AssertionError(f"{where}: raised {type(error).__name__}: {error}") from error
    results = result if isinstance(result, tuple) else (result,)
    assert len(results) == len(call.expected), f"{where}: gives {len(results)} tensors, not {len(call.expected)}"
    for number, (actual, expected) in enumerate(zip(results, call.expected, strict=True)):
        part = f"{where}, result {number}" if len(results) > 1 else where
        assert actual.shape == expected.shape, f"{part}: is {list(actual.shape)}, not {list(expected.shape)}"
        assert actual.dtype == dtype, f"{part}: is {actual.dtype}"
        wide = expected.double().flatten(1)
        off = (actual.double().flatten(1) - wide).norm(dim=1)
        wrong = ~(off <= BOUNDS[dtype] * wide.norm(dim=1))  # NaN is wrong too
        assert not bool(wrong.any()), (
            f"{part}: row {int(wrong.nonzero()[0])} is off by {float(off[wrong][0]):.2g}, and its norm is "
            f"{float(wide[wrong][0].norm()):.2g}"
        )
