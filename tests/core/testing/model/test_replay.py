"""The conformance test of recorded forward passes finds planted faults of backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sglang_plug import CannotCaptureError, ForwardBatch, ReplayCapable, TokenReplay
from sglang_plug.testing import check_attention_backend

from .test_attention import Honest


class ValuesStayUnread(TorchDispatchMode):
    """A dispatch mode that refuses operations that read a tensor's value."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default):
            raise CannotCaptureError("the forward pass reads a value")
        return func(*args, **(kwargs or {}))


class Recomputed(TokenReplay):
    """A replay that computes the forward pass of each step anew."""

    def __init__(self, forward: Callable[[ForwardBatch], Tensor]) -> None:
        self.forward = forward

    def run(self, batch: ForwardBatch) -> Tensor:
        return self.forward(batch)


class HonestReplay(Honest, ReplayCapable):
    """A backend that attends to the sequences of the plan, and whose recordings compute the forward pass anew."""

    recorded_tokens = 64
    replay: type[TokenReplay] = Recomputed

    def record(self, forward: Callable[[ForwardBatch], Tensor], batch: ForwardBatch) -> TokenReplay:
        with ValuesStayUnread():
            forward(batch)
        return self.replay(forward)  # type: ignore[call-arg]


class ReadsLengths(HonestReplay):
    def record(self, forward: Callable[[ForwardBatch], Tensor], batch: ForwardBatch) -> TokenReplay:
        try:
            return super().record(forward, batch)
        except CannotCaptureError as error:
            if "lengths" not in str(error):
                raise
            return Recomputed(forward)


class ReadsValues(HonestReplay):
    def record(self, forward: Callable[[ForwardBatch], Tensor], batch: ForwardBatch) -> TokenReplay:
        forward(batch)
        return Recomputed(forward)


class RecordsNothing(HonestReplay):
    recorded_tokens = 0


class NoReplay(HonestReplay):
    def record(self, forward: Callable[[ForwardBatch], Tensor], batch: ForwardBatch) -> Any:
        super().record(forward, batch)
        return forward


class OneRow(Recomputed):
    def run(self, batch: ForwardBatch) -> Tensor:
        return super().run(batch)[:1]


class FirstResult(Recomputed):
    """A replay that returns the first result for each number of tokens."""

    def __init__(self, forward: Callable[[ForwardBatch], Tensor]) -> None:
        super().__init__(forward)
        self.results: dict[int, Tensor] = {}

    def run(self, batch: ForwardBatch) -> Tensor:
        result = super().run(batch)
        return self.results.setdefault(len(result), result)


class LastRowAlone(Recomputed):
    """A replay that computes the rows that are read, in a wrong order."""

    def run(self, batch: ForwardBatch) -> Tensor:
        result = super().run(batch)
        return result if batch.output_rows is None else result.flip(0)


class StoresNothing(Recomputed):
    def run(self, batch: ForwardBatch) -> Tensor:
        assert batch.kv is not None
        before = [part.clone() for part in batch.kv.parts]
        result = super().run(batch)
        for part, old in zip(batch.kv.parts, before, strict=True):
            part.copy_(old)
        return result


def replaying(kind: type[TokenReplay]) -> type[HonestReplay]:
    return type(f"With{kind.__name__}", (HonestReplay,), {"replay": kind})


def check(backend: type[HonestReplay]) -> None:
    check_attention_backend(backend, only=lambda case: case.replay)


def test_a_backend_that_computes_each_step_anew_conforms() -> None:
    check(HonestReplay)


def test_steps_larger_than_the_recording_are_not_replayed() -> None:
    check(type("Small", (HonestReplay,), {"recorded_tokens": 5}))


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        (ReadsLengths, r"accepts a ModelThatReadsLengths; it must raise CannotCaptureError"),
        (ReadsValues, r"accepts a ModelThatReadsValues; it must raise CannotCaptureError"),
        (RecordsNothing, r"recorded_tokens is 0, not a number of tokens"),
        (NoReplay, r"record\(\) returned SmallModel, not a TokenReplay"),
        (replaying(OneRow), r"has the shape \[1, 32\], not \[19, 32\]"),
        (replaying(FirstResult), r"differs from the forward pass in rows \[0, "),
        (replaying(LastRowAlone), r"of which rows \[.*\] are read, differs from the forward pass"),
        (replaying(StoresNothing), r"stores other keys or values, first in slot \d+"),
    ],
)
def test_a_fault_is_named(backend: type[HonestReplay], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check(backend)
