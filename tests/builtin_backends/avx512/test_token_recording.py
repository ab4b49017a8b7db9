"""A recorded forward pass is replayed for other numbers of tokens, unless its operations depend on their number."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sglang_plug import CannotCaptureError, ForwardBatch, Kernels
from sglang_plug_backends.avx512 import kernels
from sglang_plug_backends.avx512.library import load
from sglang_plug_backends.avx512.recorder import TorchOperations
from sglang_plug_backends.avx512.token_recording import (
    RECORDED_TOKENS,
    Buffer,
    CallReplay,
    TokenRecording,
    assign_offsets,
)

WIDTH = 32
Work = Callable[[Tensor], Tensor]


@pytest.fixture
def ours(compiled: None) -> Kernels:
    return kernels.build()


def batch_of(source: Tensor) -> ForwardBatch:
    """Return a batch for a model without attention; ``source`` has a row for each token."""
    numbers, count = torch.zeros(len(source), dtype=torch.int64), [len(source)]
    return ForwardBatch(
        input_ids=source,
        positions=numbers,
        slots=numbers,
        tables=numbers[None],
        query_lens=count,
        kv_lens=count,
        plan=SimpleNamespace(address=0),
    )


def record(work: Work, source: Tensor) -> CallReplay:
    """Record ``work`` on ``source`` without computing it."""
    library = load()
    recording = TokenRecording(library)
    with library.observe_calls(recording.call, compute=False), TorchOperations(recording):
        result = work(source)
    return recording.finish(result, batch_of(source))


def layers(ours: Kernels) -> Work:
    """Return a function that calls the library and torch, with views and a residual stream."""
    torch.manual_seed(1)
    weights = [torch.randn(WIDTH, WIDTH).bfloat16() for _ in range(6)]
    multiply = [ours.pack_linear(weight, weight[0].clone()) for weight in weights]
    assert ours.pack_gated is not None
    gated = ours.pack_gated(torch.randn(2 * WIDTH, WIDTH).bfloat16(), None)
    table, norm = torch.randn(64, 16).bfloat16(), torch.randn(16).bfloat16()
    weight = torch.randn(WIDTH).bfloat16()

    def work(tokens: Tensor) -> Tensor:
        x = torch.nn.functional.embedding(tokens, weights[0].repeat(2, 1))
        cos, sin = table[tokens].cos(), table[tokens].sin()
        residual = x
        for product in multiply:
            heads = ours.rms_norm(product(x).view(-1, 2, 16), norm, 1e-6)  # two rows for each token
            rotated = ours.apply_rope(heads, cos, sin).flatten(1)
            x, residual = ours.add_rms_norm(ours.silu_mul(rotated.repeat(1, 2)) * 0.5, residual, weight, 1e-6)
        return gated(x)

    return work


@torch.inference_mode()
def test_replays_of_other_numbers_of_tokens(ours: Kernels) -> None:
    source, work = torch.zeros(RECORDED_TOKENS, dtype=torch.int64), layers(ours)
    replay = record(work, source)
    for tokens in (1, 58, 2, RECORDED_TOKENS, 13):
        source[:tokens] = torch.randint(0, 64, (tokens,))
        assert torch.equal(replay.run(batch_of(source[:tokens])), work(source[:tokens].clone()))


@torch.inference_mode()
def test_the_memory_of_layers_is_shared(ours: Kernels) -> None:
    """The memory of intermediate results is as large as those in use at the same time, not as all of them together."""
    torch.manual_seed(1)
    products = [ours.pack_linear(torch.randn(WIDTH, WIDTH).bfloat16(), None) for _ in range(20)]

    def work(x: Tensor) -> Tensor:
        for product in products:
            x = product(x)
        return x

    source = torch.randn(RECORDED_TOKENS, WIDTH).bfloat16()
    replay = record(work, source)
    assert replay.memory_bytes <= 3 * source.nbytes
    assert torch.equal(replay.run(batch_of(source)), work(source))


REFUSED: dict[str, tuple[Callable[[Kernels, Tensor], Tensor], str]] = {
    "the last row only": (lambda ours, x: ours.silu_mul(x[-1:]), "silu_mul has 1 rows"),
    "fewer rows": (lambda ours, x: ours.silu_mul(x)[1:], "508 rows for 509 tokens"),
    "a number": (lambda ours, x: x * float(x.sum()), "aten::_local_scalar_dense"),
    "another function": (lambda ours, x: ours.mask_logits(x.float(), None, torch.ones(len(x), 1).int()), "mask_logits"),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused(ours: Kernels, name: str) -> None:
    work, message = REFUSED[name]
    with torch.inference_mode(), pytest.raises(CannotCaptureError, match=message):
        record(lambda x: work(ours, x), torch.randn(RECORDED_TOKENS, WIDTH).bfloat16())


intervals = st.tuples(st.integers(1, 300), st.integers(0, 30), st.integers(0, 10))


@given(st.lists(intervals, max_size=40))
def test_buffers_in_use_at_the_same_time_do_not_overlap(sizes: list[tuple[int, int, int]]) -> None:
    buffers = [Buffer(0, size, first, first + length) for size, first, length in sizes]
    total = assign_offsets(buffers)
    assert all(0 <= buffer.offset and buffer.offset + buffer.size <= total for buffer in buffers)
    for index, buffer in enumerate(buffers):
        for other in buffers[:index]:
            together = buffer.first <= other.last and other.first <= buffer.last
            apart = buffer.offset + buffer.size <= other.offset or other.offset + other.size <= buffer.offset
            assert apart or not together
