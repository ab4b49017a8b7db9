"""Records a decode step: the library's calls on tapes, torch's operations between them one by one."""

from __future__ import annotations

import ctypes
import os
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
"""Sequences of a step. So few rows take hardly longer than one, and padding is cheap; in steps of more the arithmetic
takes so long that what a recording saves does not show."""
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
NOTHING = frozenset(
    f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach_")
)
"""There is nothing in these to do again: what follows writes to the memory that they give."""
Action = Callable[[], object]
Replay = Callable[[], None]


class CallRecorder(GraphRecorder):
    """Replays make the same calls on the same memory, in the same order."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._recording: Recording | None = None

    def sizes(self, most: int) -> list[int]:
        """Few, as each takes some steps of the model while starting."""
        return sorted({min(size, most) for size in SIZES})

    def capture(self, work: Replay) -> Replay:
        """Raises ``CannotCaptureError`` if ``work`` has results in Python, or shapes, that depend on numbers."""
        self._recording = recording = Recording(self._library)
        try:
            with self._library.telling(recording.call), _Operations(recording):
                work()
        finally:
            self._recording = None
        return recording.finish()

    def exchange(self, call: Replay) -> None:
        """One action: what it consists of is not looked at."""
        assert self._recording is not None, "ranks exchange something while nothing is captured"
        with _disable_current_modes():
            call()
        self._recording.operation(call)

    def free_bytes(self) -> int:
        """As the system counts it."""
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class Recording:
    """What is to be done again, and everything it needs to stay where it is."""

    def __init__(self, library: Library) -> None:
        self._replay, self._tape = library.replay, Tape()
        self._actions: list[Action] = []
        self._kept: list[Any] = []
        self.operations = 0

    def call(self, name: str, arguments: tuple[Any, ...]) -> None:
        """The library was called."""
        self._tape.add(name, arguments)

    def operation(self, action: Action) -> None:
        """Something else was done."""
        self._end_tape()
        self._actions.append(action)
        self.operations += 1

    def merge(self, since: int, action: Action) -> None:
        """What was done since there were ``since`` operations, none of it by the library, is all done by ``action``."""
        if self.operations > since:
            del self._actions[since - self.operations :]
            self._actions.append(action)
            self.operations = since + 1

    def keep(self, *seen: Any) -> None:
        """Hold what calls may point to."""
        self._kept.append(seen)

    def finish(self) -> Replay:
        """Does all of it again."""
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
        self.keep(tape, calls)
        self._actions.append(lambda: replay(address, count))


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation of torch, and the parts of those that are made of others, as one of them may be refused."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled in here; torch would import its compiler, which takes seconds, to keep it away."""
        return False

    def __init__(self, recording: Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recording = recording

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        parts = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
        before = self._recording.operations
        if parts:
            with self:
                found = func._op_dk(COMPOSITE, *args, **kwargs)
        else:
            if func._schema.name not in NOTHING:
                _refuse(func, args)
            found = func(*args, **kwargs)
        given, made = _tensors((args, kwargs)), _results(func, found)
        self._recording.keep(given, made)
        known = {_storage(one) for one in given}
        fresh = [_storage(one) not in known for one in made]
        changes = (func._schema.is_mutable or any(fresh)) and func._schema.name not in NOTHING
        if changes and parts:
            self._recording.merge(before, _again(func, args, kwargs, made, fresh))
        elif changes:
            self._recording.operation(_again(func, args, kwargs, made, fresh))
        return found


def _refuse(func: Any, args: tuple[Any, ...]) -> None:
    """Raise ``CannotCaptureError`` for an operation whose result's shape or memory the next run may change."""
    tags = func.tags
    dynamic = torch.Tag.dynamic_output_shape in tags
    if func is torch.ops.aten.index.Tensor:
        dynamic = any(one.dtype in (torch.bool, torch.uint8) for one in _tensors(args[1]))
    if dynamic or torch.Tag.data_dependent_output in tags or torch.Tag.inplace_view in tags:
        raise CannotCaptureError(f"{func.name()} may give another shape, or a number to Python, in each step")


def _results(func: Any, found: Any) -> list[Tensor]:
    leaves = [one for one in tree_leaves(found) if one is not None]
    if not all(isinstance(one, Tensor) for one in leaves):
        raise CannotCaptureError(f"{func.name()} gives a result to Python, which may be another one in each step")
    return leaves


def _tensors(values: Any) -> list[Tensor]:
    return [one for one in tree_leaves(values) if isinstance(one, Tensor)]


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _again(func: Any, args: tuple[Any, ...], kwargs: Any, made: list[Tensor], fresh: list[bool]) -> Action:
    """Do an operation again, and put its results where they were."""
    if not any(fresh):
        return lambda: func(*args, **kwargs)
    if len(made) == 1:
        (only,) = made
        return lambda: only.copy_(func(*args, **kwargs))

    def again() -> None:
        for old, new, own in zip(made, _tensors(func(*args, **kwargs)), fresh, strict=True):
            if own:
                old.copy_(new)

    return again
