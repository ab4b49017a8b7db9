"""A fake ``torch.cuda`` for machines without a device."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tests.fake_cuda.device.tensors import CUDA, DeviceTensor, Operators, clock, is_cuda, on_device

GIB = 1 << 30


class Functions(TorchFunctionMode):
    """A mode for torch functions that use a device before dispatch: tensors from lists, pinning, and addresses."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.as_tensor and (interface := getattr(args[0], "__cuda_array_interface__", None)) is not None:
            (size,), (address, _) = interface["shape"], interface["data"]
            return on_device(torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8))
        if func in LISTS and is_cuda(kwargs.get("device")):
            clock.wait(f"{func.__name__} with a device copies numbers there")
            return on_device(func(*args, **{**kwargs, "device": "cpu"}))
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], DeviceTensor):
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(part, (list, tuple)) for part in parts):
                clock.wait("a list as an index of a device's tensor is copied there")
                lists = [torch.tensor(part) if isinstance(part, (list, tuple)) else part for part in parts]
                args = (args[0], tuple(lists), *args[2:])
        if func is Tensor.tolist and isinstance(args[0], DeviceTensor):
            clock.wait("tolist of a device's tensor")
            return args[0].inner.tolist()
        if func is Tensor.data_ptr and isinstance(args[0], DeviceTensor):
            return args[0].inner.data_ptr()
        if func is Tensor.pin_memory:
            return args[0] if clock.is_pinned(args[0]) else clock.pin(args[0].clone())
        if func is Tensor.is_pinned:
            return clock.is_pinned(args[0])
        if func in (Tensor.to, Tensor.cuda) and not isinstance(args[0], DeviceTensor):
            return self._moved(func, args, kwargs)
        if kwargs.pop("pin_memory", False):
            return clock.pin(func(*args, **kwargs))
        return func(*args, **kwargs)

    def _moved(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Implement ``tensor.to(device, ...)``, which initialises CUDA before it dispatches."""
        device = kwargs.pop("device", None)
        positional = list(args[1:])
        if device is None and positional and isinstance(positional[0], (str, torch.device)):
            device = positional.pop(0)
        if device is None and positional and isinstance(positional[0], DeviceTensor):
            device, positional[0] = CUDA, positional[0].dtype
        if func is not Tensor.cuda and not is_cuda(device):
            return func(*args, **({**kwargs, "device": device} if device is not None else kwargs))
        dtype = kwargs.get("dtype") or next((item for item in positional if isinstance(item, torch.dtype)), None)
        queued = kwargs.get("non_blocking", next((item for item in positional if isinstance(item, bool)), False))
        with Operators():
            return torch.ops.aten._to_copy(args[0], dtype=dtype or args[0].dtype, device=CUDA, non_blocking=queued)


LISTS = (torch.tensor, torch.as_tensor, torch.asarray)


class Event:
    """A CUDA event after the work that was queued when it was recorded."""

    def __init__(self, **options: Any) -> None:
        self._behind = 0

    def record(self, stream: Any = None) -> None:
        """Record the event after the queued work."""
        self._behind = clock.queued

    def synchronize(self) -> None:
        """Finish the work before the event."""
        clock.settle(self._behind)

    def elapsed_time(self, other: Event) -> float:
        """Return the milliseconds between two events, which are always equal."""
        return 1.0

    def query(self) -> bool:
        """Return True if the work before the event is done."""
        return clock.done >= self._behind


class Graph:
    """A CUDA graph that repeats its captured operations on the same tensors."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []

    def replay(self) -> None:
        """Queue a replay of the captured operations."""
        clock.executed["graph"] += 1
        for item in self.work:
            item()


@contextmanager
def capturing(graph: Graph, pool: Any = None, stream: Any = None, capture_error_mode: str = "global") -> Iterator[None]:
    """Implement ``torch.cuda.graph``: record operations, and raise an error on synchronisation."""
    clock.finish()
    clock.tape = graph.work
    try:
        yield
    finally:
        clock.tape = None


def synchronize(device: Any = None) -> None:
    """Wait for the device."""
    clock.wait("torch.cuda.synchronize")


RUNTIME: dict[str, Any] = {
    "is_available": lambda: True,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "is_initialized": lambda: True,
    "_exchange_device": lambda index: 0,
    "_maybe_exchange_device": lambda index: 0,
    "set_device": lambda device: None,
    "synchronize": synchronize,
    "empty_cache": lambda: None,
    "current_stream": lambda device=None: SimpleNamespace(cuda_stream=0),
    "is_current_stream_capturing": lambda: clock.tape is not None,
    "CUDAGraph": Graph,
    "graph": capturing,
    "graph_pool_handle": lambda: (0, 0),
    "mem_get_info": lambda device=None: (100 * GIB, 140 * GIB),
    "get_device_capability": lambda device=None: (9, 0),
    "get_device_name": lambda device=None: "a device that is played",
    "get_device_properties": lambda device=None: SimpleNamespace(
        multi_processor_count=132,
        total_memory=140 * GIB,
        L2_cache_size=1,
        major=9,
        minor=0,
        name="a device that is played",
    ),
    "manual_seed_all": lambda seed: None,
    "Event": Event,
}


def guard_device() -> None:
    """Let torch switch to CUDA in a build for CPUs, without any effect, as it does for ``meta``.

    This does what ``torch._C._ensureCUDADeviceGuardSet`` does in a CUDA build.
    """
    if torch.version.cuda is not None:
        torch._C._ensureCUDADeviceGuardSet()
        return
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * (META + 1)).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    guards[1] = guards[1] or guards[META]


META = 14
"""The number of ``meta`` among torch's device types."""


@contextmanager
def fake_device(monkeypatch: pytest.MonkeyPatch, *, fresh: float = torch.nan) -> Iterator[None]:
    """Make ``cuda`` a device of ``DeviceTensor`` while the context is open."""
    guard_device()
    clock.__init__(fresh=fresh)  # type: ignore[misc]
    with monkeypatch.context() as patch, Functions(), Operators():
        for name, value in RUNTIME.items():
            patch.setattr(torch.cuda, name, value)
        # no test depends on collections, which take most of an engine's start
        patch.setattr(gc, "collect", lambda *generation: 0)
        patch.setattr(torch.__future__, "_swap_module_params_on_conversion", True)  # parameters change their class
        yield
    clock.finish()


@contextmanager
def without_synchronization() -> Iterator[None]:
    """Raise an error on synchronisation with the device while the context is open."""
    clock.strict, before = True, clock.strict
    try:
        yield
    finally:
        clock.strict = before
