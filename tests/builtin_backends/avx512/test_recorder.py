"""Recorded operations are replayed on current values; operations that cannot be recorded are refused by name."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sglang_plug import CannotCaptureError, Kernels
from sglang_plug_backends.avx512 import kernels
from sglang_plug_backends.avx512.library import RECORDED, load
from sglang_plug_backends.avx512.recorder import CallRecorder

pytestmark = pytest.mark.usefixtures("compiled")
Work = Callable[[Tensor], Tensor]


@pytest.fixture
def recorder(compiled: None) -> CallRecorder:
    return CallRecorder(load())


@pytest.fixture
def ours(compiled: None) -> Kernels:
    return kernels.build()


@torch.inference_mode()
def check(recorder: CallRecorder, work: Work, shape: tuple[int, ...] = (3, 32)) -> None:
    """Record an operation, replay it twice with other inputs, and compare the results with those of a direct call."""
    source, out = torch.randn(shape).bfloat16(), torch.empty(0)

    def recorded() -> None:
        nonlocal out
        out = work(source)

    replay = recorder.capture(recorded)
    for _ in range(2):
        gc.collect()
        source.copy_(torch.randn(shape).bfloat16())
        replay()
        result, before = out.clone(), source.clone()
        expected = work(source)
        assert torch.equal(result, expected) and expected.numel()
        source.copy_(before)


def chain(ours: Kernels) -> Work:
    """Call functions of the library, with torch operations before, between and after them."""
    torch.manual_seed(1)
    multiply = ours.pack_linear(torch.randn(32, 32).bfloat16(), torch.randn(32).bfloat16())
    assert ours.pack_gated is not None
    gated = ours.pack_gated(torch.randn(64, 32).bfloat16(), None)
    weight = torch.randn(32).bfloat16()
    angles = torch.randn(3, 16).bfloat16()

    def work(x: Tensor) -> Tensor:
        x = x * 2
        normed = ours.rms_norm(x, weight, 1e-5)
        rotated = ours.apply_rope(multiply(normed).view(3, 2, 16), angles.cos(), angles.sin()).flatten(1)
        summed, residual = ours.add_rms_norm(rotated, x, weight, 1e-6)
        return torch.cat((gated(summed), ours.silu_mul(residual)), dim=-1).float().softmax(-1)

    return work


def test_calls_and_operations(recorder: CallRecorder, ours: Kernels) -> None:
    check(recorder, chain(ours))


OPERATIONS: dict[str, Work] = {
    "functional": lambda x: x + 1,
    "two results": lambda x: torch.stack([part.float() for part in x.max(-1)]),
    "a view": lambda x: x.view(32, 3)[1:],
    "a view of a result": lambda x: (x * 2).view(32, 3).t()[1:].contiguous(),
    "in place": lambda x: x.clone().mul_(3).add_(1),
    "in place on a view": lambda x: [copy := x.clone(), copy[1].zero_()][0],
    "into a given tensor": lambda x: torch.add(x, 1, out=torch.empty_like(x)),
    "copied": lambda x: torch.empty_like(x).copy_(x),
    "indexed": lambda x: x[torch.tensor([2, 0])],
    "stored by index": lambda x: x.clone().index_put_((torch.tensor([1]),), x[:1]),
    "stored by mask": lambda x: x.clone().masked_fill_(x > 0, 5),
    "made of others": lambda x: torch.where(x.isfinite(), x.float(), 0.0).reshape(32, 3).t().reshape(-1),
    "a product": lambda x: torch.nn.functional.linear(x.float(), torch.ones(4, 32), torch.ones(4)),
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None]),
    "split": lambda x: torch.cat([part + 1 for part in x.split((8, 24), dim=-1)], dim=-1),
    "summed into zeros": lambda x: torch.zeros(2, 32).index_add_(0, torch.tensor([0, 1, 0]), x.float()),
    "nothing of the input": lambda x: torch.arange(5) + torch.ones(5, dtype=torch.int64),
}


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_operations(recorder: CallRecorder, name: str) -> None:
    check(recorder, OPERATIONS[name])


REFUSED: dict[str, tuple[Work, str]] = {
    "a number": (lambda x: x * float(x.sum()), "aten::_local_scalar_dense"),
    "a branch": (lambda x: x if x.sum() > 0 else -x, "aten::_local_scalar_dense"),
    "a comparison": (lambda x: x if torch.equal(x, x) else -x, "aten::equal"),
    "indices": (lambda x: x.nonzero(), "aten::nonzero"),
    "a mask": (lambda x: x[x > 0], "aten::index.Tensor"),
    "a selection": (lambda x: x.masked_select(x > 0), "aten::masked_select"),
    "distinct numbers": (lambda x: x.float().unique(), "aten::_unique2"),
    "counts": (lambda x: x.abs().long().flatten().bincount(), "aten::bincount"),
    "repetitions": (lambda x: x.repeat_interleave(torch.tensor([1, 2, 3]), dim=0), "aten::repeat_interleave"),
    "another shape in place": (lambda x: x.clone().t_(), "aten::t_"),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused(recorder: CallRecorder, name: str) -> None:
    work, operation = REFUSED[name]
    with torch.inference_mode(), pytest.raises(CannotCaptureError, match=operation):
        x = torch.randn(3, 32).bfloat16()
        recorder.capture(lambda: [work(x)] and None)


def test_functions_that_a_tape_does_not_know_are_refused(recorder: CallRecorder, ours: Kernels) -> None:
    with pytest.raises(CannotCaptureError, match="pack_matrix of the kernels avx512 cannot be recorded"):
        recorder.capture(lambda: [ours.pack_linear(torch.randn(32, 32).bfloat16(), None)] and None)


def test_a_refusal_ends_the_recording(recorder: CallRecorder, ours: Kernels) -> None:
    plain = {name: getattr(load(), name) for name in RECORDED}
    test_refused(recorder, "counts")
    assert plain == {name: getattr(load(), name) for name in RECORDED}
    check(recorder, chain(ours))


def test_calls_between_operations_are_one_tape(ours: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    library, counts = load(), []
    replay_calls = library.replay

    def counted(address: int, count: int) -> None:
        counts.append(count)
        replay_calls(address, count)

    monkeypatch.setattr(library, "replay", counted)
    with torch.inference_mode():
        x = torch.randn(3, 32).bfloat16()
        work = chain(ours)
        replay = CallRecorder(library).capture(lambda: [work(x)] and None)
        replay()
    assert counts == [2, 4]  # norm, product; cosines and sines; rotation, norm, gated product, activation


def test_other_threads_are_not_recorded(ours: Kernels) -> None:
    library, calls, other = load(), [], torch.randn(2, 64).bfloat16()
    with library.observe_calls(lambda name, arguments: calls.append(name)):
        ours.silu_mul(other)
        thread = threading.Thread(target=ours.silu_mul, args=(other,))
        thread.start()
        thread.join()
    ours.silu_mul(other)
    assert calls == ["silu_mul"]


def test_memory_is_kept_as_long_as_the_recording(recorder: CallRecorder) -> None:
    x = torch.randn(3, 32)

    def work() -> None:
        x.copy_((x + 1) * 2)

    with torch.inference_mode():
        replay = recorder.capture(work)
        others = [torch.full((3, 32), 9.0) for _ in range(20)]  # where the recorded results would have been
        x.fill_(2.0)
        replay()
    assert torch.equal(x, torch.full((3, 32), 6.0)) and all((other == 9).all() for other in others)


def test_sizes(recorder: CallRecorder) -> None:
    assert recorder.sizes(3) == [1, 2, 3] and recorder.sizes(100) == [1, 2, 4, 8]
    assert recorder.free_bytes() > 0
