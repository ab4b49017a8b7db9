"""Recording of a decode step: tapes of library calls, and the torch operations between them one by one."""

from __future__ import annotations

import ctypes
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from sglang_plug import CannotCaptureError, GraphRecorder

from .calls import Tape
from .library import Library

SIZES = (1, 2, 4, 8)
"""Batch sizes that are recorded.

So few rows take hardly longer than one, so padding is cheap; larger steps take so long that the saving of a recording
does not show.
"""
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
NOTHING = frozenset(
    f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach_")
)
"""Operations without effect of their own: a later operation writes to the memory that they return."""
Action = Callable[[], object]
Replay = Callable[[], None]


class CallRecorder(GraphRecorder):
    """Recorder whose replays make the same calls on the same memory in the same order."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._recording: Recording | None = None

    def sizes(self, max_size: int) -> list[int]:
        """Return the few batch sizes to record, since each takes some steps of the model at start-up."""
        return sorted({min(size, max_size) for size in SIZES})

    def capture(self, work: Replay) -> Replay:
        """Record ``work``. Raises ``CannotCaptureError`` if Python results or shapes depend on values."""
        self._recording = recording = Recording(self._library)
        try:
            with self._library.observe_calls(recording.call), TorchOperations(recording):
                work()
        finally:
            self._recording = None
        return recording.finish()

    def exchange(self, call: Replay) -> None:
        """Record one opaque action."""
        assert self._recording is not None, "ranks exchange something while nothing is captured"
        with _disable_current_modes():
            call()
        self._recording.operation(call)

    def free_bytes(self) -> int:
        """Return the free memory in bytes as reported by the system."""
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class OperationRecording(ABC):
    """Recorded actions; ``TorchOperations`` adds those of torch."""

    def __init__(self) -> None:
        self._actions: list[Any] = []
        self.operations = 0
        """Number of actions other than library calls."""

    def operation(self, action: Action) -> None:
        """Record an action other than a library call."""
        self._actions.append(action)
        self.operations += 1

    def merge(self, since: int, action: Action) -> None:
        """Replace the operations recorded since ``since``, none of them library calls, by ``action``."""
        if self.operations > since:
            del self._actions[since - self.operations :]
            self._actions.append(action)
            self.operations = since + 1

    @abstractmethod
    def keep(self, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        """Keep alive the tensors of an operation, whether it is recorded or has no effect of its own."""


class Recording(OperationRecording):
    """The recorded actions and all tensors that must stay alive for them."""

    def __init__(self, library: Library) -> None:
        super().__init__()
        self._replay, self._tape = library.replay, Tape()
        self._kept: list[Any] = []

    def call(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Record a call of the library."""
        self._tape.add(name, arguments)

    def operation(self, action: Action) -> None:
        """Record an action other than a library call."""
        self._end_tape()
        super().operation(action)

    def keep(self, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        """Keep alive the tensors that recorded calls may point to."""
        self._kept.append((inputs, outputs))

    def finish(self) -> Replay:
        """Return a function that replays everything."""
        self._end_tape()
        actions, kept = tuple(self._actions), self._kept

        def again(kept: list[Any] = kept) -> None:
            for action in actions:
                action()

        return again

    def _end_tape(self) -> None:
        if not len(self._tape):
            return
        tape, self._tape = self._tape, Tape()
        calls, replay = tape.packed(), self._replay
        address, count = ctypes.addressof(calls), len(tape)
        self._kept.append((tape, calls))
        self._actions.append(lambda: replay(address, count))


class TorchOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that sees every torch operation and the parts of composite ones, any of which may be refused."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return True: nothing is compiled here, and torch would import its slow compiler in order to skip it."""
        return False

    def __init__(self, recording: OperationRecording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recording = recording

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        parts = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
        before = self._recording.operations
        if parts:
            with self:
                result = func._op_dk(COMPOSITE, *args, **kwargs)
        else:
            if func._schema.name not in NOTHING:
                _refuse(func, args)
            result = func(*args, **kwargs)
        inputs, outputs = tensors_in((args, kwargs)), _results(func, result)
        self._recording.keep(inputs, outputs)
        known = {storage_of(tensor) for tensor in inputs}
        fresh = [storage_of(tensor) not in known for tensor in outputs]
        changes = (func._schema.is_mutable or any(fresh)) and func._schema.name not in NOTHING
        if changes and parts:
            self._recording.merge(before, TorchOperation(func, args, kwargs, outputs, fresh))
        elif changes:
            self._recording.operation(TorchOperation(func, args, kwargs, outputs, fresh))
        return result


def _refuse(func: Any, args: tuple[Any, ...]) -> None:
    """Raise ``CannotCaptureError`` for an operation whose result's shape or memory the next run may change."""
    tags = func.tags
    dynamic = torch.Tag.dynamic_output_shape in tags
    if func is torch.ops.aten.index.Tensor:
        dynamic = any(tensor.dtype in (torch.bool, torch.uint8) for tensor in tensors_in(args[1]))
    if dynamic or torch.Tag.data_dependent_output in tags or torch.Tag.inplace_view in tags:
        raise CannotCaptureError(f"{func.name()} may return another shape, or a number to Python, in each step")


def _results(func: Any, result: Any) -> list[Tensor]:
    leaves = [leaf for leaf in tree_leaves(result) if leaf is not None]
    if not all(isinstance(leaf, Tensor) for leaf in leaves):
        raise CannotCaptureError(f"{func.name()} returns a value to Python, which may differ in each step")
    return leaves


def tensors_in(values: Any) -> list[Tensor]:
    """Return the tensors in nested arguments or results."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def storage_of(tensor: Tensor) -> int:
    """Return a number that tensors share if they share memory."""
    return int(tensor.untyped_storage()._cdata)


class TorchOperation:
    """A recorded operation: repeats it and stores the results in the original tensors.

    Args:
        func: the operator.
        args: its positional arguments.
        kwargs: the others.
        outputs: the tensors that it returned.
        fresh: for each of them, whether it has memory of its own.
    """

    __slots__ = ("args", "fresh", "func", "kwargs", "outputs")

    def __init__(self, func: Any, args: Any, kwargs: Any, outputs: list[Tensor], fresh: list[bool]) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs
        self.outputs = outputs
        self.fresh = fresh if any(fresh) else []

    def __call__(self) -> None:
        """Repeat the operation."""
        result = self.func(*self.args, **self.kwargs)
        if self.fresh:
            for old, new, own in zip(self.outputs, tensors_in(result), self.fresh, strict=True):
                if own:
                    old.copy_(new)
