"""Every kernel equals its definition, interpreted, and compiled where there is a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sglang_plug import AttentionShape, Facts, KVPool, Plugins
from sglang_plug.contracts.model import kernels as definitions

pytest.importorskip("triton", reason="Triton is not installed")

from sglang_plug_backends.triton import kernel_set as kernels
from sglang_plug_backends.triton.launch import INTERPRETED
from sglang_plug_backends.triton.matrix_vector import TILES, multiply_row
from sglang_plug_backends.triton.moe import biased_moe, sort_pairs

# The interpreter computes with numpy, which warns where a device does not.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BOUNDS = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
device = "cpu" if INTERPRETED else "cuda"


class RandomTensors:
    """Creates random tensors that are the same in each test."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(1)

    def __call__(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=self.generator).to(device, dtype)


def close(actual: Tensor, expected: Tensor, dtype: torch.dtype, where: object, slack: float = 1.0) -> None:
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, (where, actual.dtype, actual.shape)
    error = (actual.double() - expected.double()).norm() / expected.double().norm()
    assert error <= BOUNDS[dtype] * slack, (where, float(error))


def check_norms(randn: RandomTensors) -> None:
    for dtype, size, rows, wide in itertools.product(DTYPES, (1, 7, 64, 160, 2048), (1, 3), (False, True)):
        x, residual, weight = randn(rows, size, dtype=dtype), randn(rows, size, dtype=dtype), randn(size)
        weight = weight if wide else weight.to(dtype)
        close(kernels.rms_norm(x, weight, 1e-5), definitions.rms_norm(x, weight, 1e-5), dtype, (dtype, size, rows))
        normed, total = definitions.add_rms_norm(x, residual, weight, 1e-5)
        actual, summed = kernels.add_rms_norm(x, residual, weight, 1e-5)
        close(summed, total, dtype, (dtype, size, rows))
        close(actual, normed, dtype, (dtype, size, rows))
        assert summed is residual, "the kernel was not used"
    for dtype in DTYPES:
        heads = randn(4, 6, 3 * 16, dtype=dtype)[:, 2:5, 16:32]
        weight = randn(16)
        close(kernels.rms_norm(heads, weight, 1e-6), definitions.rms_norm(heads, weight, 1e-6), dtype, ("heads", dtype))
    small = torch.full((2, 8), 1e-4, device=device)
    ones = torch.ones(8, device=device)
    close(kernels.rms_norm(small, ones, 1e-3), definitions.rms_norm(small, ones, 1e-3), torch.float32, "eps counts")
    assert kernels.rms_norm(randn(0, 8), randn(8), 1e-5).shape == (0, 8)


def check_activations(randn: RandomTensors) -> None:
    for dtype, width, rows in itertools.product(DTYPES, (1, 24, 1024, 1500), (1, 5)):
        pair = randn(rows, 2 * width, dtype=dtype)
        close(kernels.silu_mul(pair), definitions.silu_mul(pair), dtype, (dtype, width, rows))
        view = randn(rows, 2 * width + 6, dtype=dtype)[:, : 2 * width]
        close(kernels.silu_mul(view), definitions.silu_mul(view), dtype, ("a view", dtype, width, rows))
    assert kernels.silu_mul(randn(0, 8)).shape == (0, 4)


def check_rope(randn: RandomTensors) -> None:
    for dtype, heads, (dim, width) in itertools.product(DTYPES, (1, 5, 40), ((16, 16), (64, 64), (80, 32), (24, 12))):
        angles = randn(3, width // 2).repeat(1, 2)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        whole = randn(3, heads + 2, dim, dtype=dtype)
        for x in (whole, whole[:, 1 : heads + 1]):
            close(
                kernels.apply_rope(x, cos, sin), definitions.apply_rope(x, cos, sin), dtype, (dtype, heads, dim, width)
            )
    wide = angles.cos()
    expected = definitions.apply_rope(whole, wide, wide)
    close(kernels.apply_rope(whole, wide, wide), expected, torch.bfloat16, "angles of another dtype")


def check_rope_and_store(randn: RandomTensors) -> None:
    LAYOUTS = ((1, 1, 16, 16, 16), (5, 2, 64, 64, 64), (40, 8, 80, 32, 80), (3, 20, 24, 12, 20))
    cases = itertools.product(DTYPES, (None, *DTYPES, torch.float8_e4m3fn, torch.float8_e5m2), LAYOUTS)
    for dtype, kv_dtype, (heads, kv_heads, dim, width, value_dim) in cases:
        where = (dtype, kv_dtype, heads, kv_heads, dim, width)
        angles = randn(3, width // 2).repeat(1, 2)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        packed = randn(3, heads + kv_heads, dim, dtype=dtype)
        q, k, v = packed[:, :heads], packed[:, heads:], randn(3, kv_heads, value_dim + 4, dtype=dtype)[..., :value_dim]
        shape = AttentionShape(
            heads=heads, kv_heads=kv_heads, dim=dim, value_dim=value_dim, layers=2, kv_dtype=kv_dtype
        )
        pools = [KVPool.of(shape, slots=9, dtype=dtype, device=torch.device(device)) for _ in range(2)]
        for pool in pools:
            pool.k_scale[1], pool.v_scale[1] = 0.5, 0.25
        slots = torch.tensor([4, 1, 8], device=device)
        actual = kernels.rope_store(q, k, v, cos, sin, pools[0], 1, slots)
        expected = definitions.rope_store(q, k, v, cos, sin, pools[1], 1, slots)
        for mine, theirs in zip(actual, expected, strict=True):
            close(mine, theirs, dtype, where)
        for mine, theirs in ((pools[0].k, pools[1].k), (pools[0].v, pools[1].v)):
            assert not mine[0].float().any() and not mine[1][[0, 2, 3, 5, 6, 7]].float().any(), where
            loosest = torch.bfloat16 if torch.bfloat16 in (dtype, kv_dtype) else torch.float16 if kv_dtype else dtype
            if mine[1].dtype.itemsize > 1 or INTERPRETED:
                close(mine[1].float(), theirs[1].float(), loosest, where)


@pytest.mark.interpreted
def test_pool_in_float8(monkeypatch: pytest.MonkeyPatch) -> None:
    randn = RandomTensors()
    monkeypatch.setattr(
        kernels, "writes", lambda dtype, device: True
    )  # the interpreter converts only numbers that need no rounding
    cos, sin, slots = torch.ones(3, 16), torch.zeros(3, 16), torch.tensor([4, 1, 8])
    for kv_dtype, dtype in itertools.product((torch.float8_e4m3fn, torch.float8_e5m2), DTYPES[:2]):
        shape = AttentionShape(heads=4, kv_heads=2, dim=24, layers=1, kv_dtype=kv_dtype)
        largest = torch.finfo(kv_dtype).max
        pools = [KVPool.of(shape, slots=9, dtype=dtype, device=torch.device("cpu")) for _ in range(2)]
        q = randn(3, 4, 24, dtype=dtype)
        k, v = (randn(3, 2, 24).to(kv_dtype).to(dtype) * 4 for _ in range(2))
        k[0, 0, 0], k[1, 1, 20], v[2, 0, 3], v[0, 1, 4] = (
            largest,
            -largest,
            torch.inf,
            torch.inf,
        )  # the pool counts half
        for pool, rope_store in zip(pools, (kernels.rope_store, definitions.rope_store), strict=True):
            pool.k_scale[0], pool.v_scale[0] = 0.5, 0.25
            rope_store(q, k, v, cos.to(dtype), sin.to(dtype), pool, 0, slots)
        assert pools[0].k[0][4, 0, 0] == largest and pools[0].k[0][1, 1, 20] == -largest
        for mine, theirs in ((pools[0].k[0], pools[1].k[0]), (pools[0].v[0], pools[1].v[0])):
            normal = theirs.float().abs() >= torch.finfo(kv_dtype).smallest_normal
            assert torch.equal(mine.float()[normal], theirs.float()[normal]), (dtype, kv_dtype)


def gated_tanh(both: Tensor) -> Tensor:
    gate, up = both.chunk(2, dim=1)
    return gate.tanh() * up


def check_experts(randn: RandomTensors) -> None:
    routings, widths = ((1, 4, 2), (9, 4, 1), (40, 3, 3), (33, 20, 4)), ((16, 8), (70, 36))
    for (first, dtype), (second, (tokens, count, chosen)) in itertools.product(enumerate(DTYPES), enumerate(routings)):
        hidden, width = widths[(first + second) % 2]  # each with every dtype, and with every routing
        x = randn(tokens, hidden, dtype=dtype)
        gate_up = randn(count, 2 * width, hidden, dtype=dtype) / 8
        down = randn(count, hidden, width, dtype=dtype) / 8
        experts = torch.rand(tokens, count, generator=randn.generator).topk(chosen).indices.to(device)
        weights = torch.rand(tokens, chosen, generator=randn.generator).to(device)
        arguments = (x, gate_up, down, experts, weights)
        where = (dtype, tokens, count, chosen, hidden)
        close(kernels.moe(*arguments), definitions.moe(*arguments), dtype, where, slack=1.5)
        biases = randn(count, 2 * width, dtype=dtype), randn(count, hidden, dtype=dtype)
        biased = (x, gate_up, down, *biases, experts, weights, gated_tanh)
        close(biased_moe(*biased), definitions.biased_moe(*biased), dtype, where, slack=1.5)
        ungated = (x, gate_up[:, :width].contiguous(), down, None, None, experts, weights, torch.relu)
        close(biased_moe(*ungated), definitions.biased_moe(*ungated), dtype, where, slack=1.5)
    everyone = torch.zeros(50, 1, dtype=torch.int64, device=device) + 2
    arguments = (randn(50, 16), randn(5, 16, 16), randn(5, 16, 8), everyone, torch.ones(50, 1, device=device))
    close(
        kernels.moe(*arguments), definitions.moe(*arguments), torch.float32, "all tokens choose one expert", slack=1.5
    )


@pytest.mark.interpreted
def test_sorted_pairs() -> None:
    experts = torch.tensor([[2, 0], [2, 5], [2, 0]])
    blocks = sort_pairs(experts, 6, 2)
    used = blocks.experts < 6
    assert blocks.order.tolist() == [1, 5, 0, 2, 4, 3]
    assert blocks.experts[used].tolist() == [0, 2, 2, 5]
    assert blocks.starts[used].tolist() == [0, 2, 4, 5]
    assert blocks.ends[used].tolist() == [2, 5, 5, 6]


def check_one_row(randn: RandomTensors) -> None:
    float16, bfloat16 = DTYPES[1:]
    # Every pair of dtype, gate and bias, for all tiles and shapes.
    kinds = ((float16, False, False), (float16, True, True), (bfloat16, False, True), (bfloat16, True, False))
    shapes = ((1, 1), (5, 100), (64, 512), (130, 1500))
    for tiles, (rows, size), (dtype, gated, biased) in itertools.product(TILES[::3], shapes, kinds):
        weight = randn(2 * rows if gated else rows, size, dtype=dtype)
        bias = randn(len(weight), dtype=dtype) if biased else None
        x = randn(1, size, dtype=dtype)
        wide = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
        expected = definitions.silu_mul(wide) if gated else wide
        actual = multiply_row(weight, bias, x, gated=gated, tiles=tiles)
        close(actual, expected.to(dtype), dtype, (tiles, rows, size, gated, biased))


CHECKS = [check_norms, check_activations, check_rope, check_rope_and_store, check_one_row, check_experts]


@pytest.mark.interpreted
@pytest.mark.parametrize("check", CHECKS)
def test_interpreted_kernels(check: Callable[[RandomTensors], None]) -> None:
    assert INTERPRETED
    check(RandomTensors())


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("check", CHECKS)
def test_compiled_kernels(check: Callable[[RandomTensors], None]) -> None:
    check(RandomTensors())


def test_without_gpu_and_interpreter_the_definitions_are_used() -> None:
    pair = torch.randn(3, 8)
    assert kernels.silu_mul(pair).shape == (3, 4)
    assert kernels.build().name == "triton"


def test_chosen_on_cuda() -> None:
    plugins = Plugins.discover()
    assert plugins.choose("kernels", Facts(device="cuda")) == "triton"
    assert plugins.choose("kernels", Facts(device="cpu")) == "cpu"
    assert plugins.choose("kernels", Facts(device="mps")) == "torch"
