"""A fake ``cuda`` device in host memory, with correct values, which detects synchronisation.

Operations are computed at once, by the CPU. What the device would do later is done later: a copy to the host arrives
when an event behind it is waited for, and a copy to the device must find its source unchanged until then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

CUDA = torch.device("cuda", 0)
POISON = 0x7F
"""The byte that fills host memory until a copy from the device has arrived."""
FREE = frozenset({"aten.detach", "aten.view", "aten._unsafe_view", "aten.alias", "aten.slice", "aten.select"})
FREE |= {"aten.unsqueeze", "aten.squeeze", "aten.expand", "aten.transpose", "aten.t", "aten.permute", "aten.split"}
FREE |= {"aten.split_with_sizes", "aten.unbind", "aten.as_strided", "aten.empty", "aten.empty_like", "aten.new_empty"}
FREE |= {"aten.empty_strided", "aten.new_empty_strided", "aten.view_as"}
"""Operators that launch nothing."""


class SynchronizationError(AssertionError):
    """Raised where the host would wait for the device, or the device for the host."""


@dataclass
class Clock:
    """The state of the device: its pending work, and a log of executed operations."""

    strict: bool = False
    """True if synchronisation is an error."""
    executed: Counter[str] = field(default_factory=Counter)
    """Names of the operators called on device tensors and of the launched kernels."""
    waits: list[str] = field(default_factory=list)
    """Operations that synchronised while that was allowed."""
    fresh: float = torch.nan
    """The content of memory before its first write."""
    queue: list[tuple[Tensor, Tensor, bool]] = field(default_factory=list)
    """Pending copies: destination on the host, values, and whether the copy has started."""
    done: int = 0
    """Number of copies that had finished before those in the queue."""
    tape: list[Callable[[], None]] | None = None
    """The operations of the graph that is being captured."""
    pins: dict[int, Tensor] = field(default_factory=dict)
    """Pinned tensors by their addresses."""

    def wait(self, why: str) -> None:
        """Record an operation that waits, which raises an error if ``strict``."""
        if self.strict or self.tape is not None:
            raise SynchronizationError(why)
        self.waits.append(why)
        self.finish()

    def finish(self) -> None:
        """Finish all queued work."""
        self.settle(self.queued)

    @property
    def queued(self) -> int:
        """Return the number of copies queued so far."""
        return self.done + len(self.queue)

    @torch.inference_mode()
    def settle(self, count: int) -> None:
        """Finish the first ``count`` copies of all that were ever queued."""
        ready = self.queue[: max(0, count - self.done)]
        del self.queue[: len(ready)]
        self.done += len(ready)
        for host, values, arriving in ready:
            if arriving:
                host.copy_(values)
            else:
                assert _same_bytes(host, values), "the host wrote to memory that the device was still to read"

    def launches(self) -> Counter[str]:
        """Return the executed operations, without those that only create views."""
        return Counter({name: count for name, count in self.executed.items() if name not in FREE})

    def pin(self, tensor: Tensor) -> Tensor:
        """Mark ``tensor`` as pinned and return it."""
        if tensor.numel():
            self.pins[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def is_pinned(self, tensor: Tensor) -> bool:
        """Return True if the tensor's memory is pinned or empty."""
        return tensor.numel() == 0 or tensor.untyped_storage().data_ptr() in self.pins


def _same_bytes(tensor: Tensor, other: Tensor) -> bool:
    return torch.equal(tensor.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8))


clock = Clock()
"""The state of the only device."""


class DeviceTensor(Tensor):
    """A tensor on the device, whose values are in ``inner``."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> DeviceTensor:
        with torch.inference_mode(inner.is_inference()):
            tensor = Tensor._make_wrapper_subclass(
                cls,
                inner.shape,
                strides=inner.stride(),
                storage_offset=inner.storage_offset(),
                dtype=inner.dtype,
                layout=inner.layout,
                device=CUDA,
                requires_grad=False,
            )
        tensor.inner = inner
        return tensor

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"DeviceTensor({tuple(self.shape)}, {self.dtype})"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return execute(func, args, kwargs or {})


def is_cuda(device: Any) -> bool:
    """Return True for the fake device."""
    return device is not None and not isinstance(device, bool) and torch.device(device).type == "cuda"


class Operators(TorchDispatchMode):
    """A dispatch mode for tensors that are created on the device or copied to it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if is_cuda(kwargs.get("device")) and not any(isinstance(tensor, DeviceTensor) for tensor in tensors):
            if str(func).startswith("aten._to_copy"):
                return DeviceTensor.__torch_dispatch__(func, types, args, kwargs)
            return create(func, args, kwargs)
        return func(*args, **kwargs)


def execute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run ``func`` on the device; raise an error if a real device would fail or synchronise."""
    if func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
        with Operators():  # for the tensors that ``func`` creates on the device
            return func.decompose(*args, **kwargs)
    name = str(func).rpartition(".")[0]
    clock.executed[name] += 1
    if name in COPIES:
        return COPIES[name](func, *args, **kwargs)
    _check_devices(func, name, args, kwargs)
    _check_values(func, name, args, kwargs)
    target = kwargs.get("device")
    assert target is None or torch.device(target).type == "cuda", f"{func} of a device's tensor to {target}"
    inputs = {id(leaf.inner): leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, DeviceTensor)}
    result = _recorded(func, _inner(args), _inner({**kwargs, "device": "cpu"} if target is not None else kwargs))
    assert all(item.shape == item.inner.shape for item in inputs.values()), "tensors of the device are not resized"
    if "empty" in name:
        _spoil(result)
    return tree_map(lambda item: _outer(item, inputs) if isinstance(item, Tensor) else item, result)


def _outer(inner: Tensor, inputs: dict[int, DeviceTensor]) -> Tensor:
    """Return the tensor that was changed in place, or wrap a new one."""
    same = inputs.get(id(inner))
    return DeviceTensor(inner) if same is None else same


def on_device(inner: Tensor) -> Tensor:
    """Wrap ``inner`` as a tensor of the device."""
    return DeviceTensor(inner)


def create(func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """Create a tensor on the device by an operator that names it."""
    clock.executed[str(func).rpartition(".")[0]] += 1
    result = _recorded(func, args, {**kwargs, "device": torch.device("cpu"), "pin_memory": None})
    if "empty" in str(func):
        _spoil(result)
    return on_device(result)


def _spoil(tensor: Tensor) -> None:
    """Fill new memory so that reads before the first write are detected."""
    if tensor.is_floating_point():
        tensor.fill_(clock.fresh)
    elif tensor.dtype != torch.bool:
        tensor.fill_(0 if clock.fresh == 0 else torch.iinfo(tensor.dtype).max)


def _inner(tree: Any) -> Any:
    return tree_map(lambda item: item.inner if isinstance(item, DeviceTensor) else item, tree)


def _recorded(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run ``func`` on the values, and record it for the graph that is being captured."""
    result = func(*args, **kwargs)
    if clock.tape is None or str(func).rpartition(".")[0] in FREE:
        return result
    input_ids = {id(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
    outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]

    def again() -> None:
        anew = [leaf for leaf in tree_leaves(func(*args, **kwargs)) if isinstance(leaf, Tensor)]
        for held, values in zip(outputs, anew, strict=True):
            if id(held) not in input_ids:
                held.copy_(values)

    clock.tape.append(again)
    return result


def _check_devices(func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> None:
    """Raise an error for host tensors other than scalars, because the device cannot read them."""
    hosts = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.device.type == "cpu"]
    if not hosts:
        return
    if name in ("aten.index", "aten.index_put", "aten.index_put_", "aten._index_put_impl_"):
        clock.wait(f"{func} with an index or values of the host copies them, which waits")
    elif any(host.dim() > 0 for host in hosts):
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, found cuda:0 and cpu")


def _check_values(func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> None:
    """Raise an error for operations that need the device's values on the host."""
    if name.startswith("aten.index"):
        indices = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else []
        if any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices):
            clock.wait(f"{func} with a mask counts what it holds")
        return
    if name == "aten.repeat_interleave":
        if kwargs.get("output_size") is None:
            clock.wait(f"{func} without output_size")
        return
    if torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags or name in WAITING:
        clock.wait(f"{func} looks at values")


WAITING = frozenset({"aten._local_scalar_dense", "aten.equal", "aten.is_nonzero", "aten.bincount", "aten.nonzero"})


def _to_copy(func: Any, x: Tensor, **options: Any) -> Tensor:
    target = options.pop("device", None) or x.device
    queued, options["pin_memory"] = options.pop("non_blocking", False), None
    if not isinstance(x, DeviceTensor):
        return on_device(_to_device(x, func(x, **options), queued))
    if target.type == "cuda":
        return on_device(_recorded(func, (x.inner,), options))
    assert clock.tape is None, "a copy to the host cannot be captured"
    # torch itself keeps queued values in pinned memory
    held = func(x.inner, **options)
    if not queued:
        clock.wait("a copy from the device to the host")
        return held
    return _to_host(clock.pin(torch.empty_like(held)), held, queued)


def _copy(func: Any, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    if isinstance(target, DeviceTensor):
        if isinstance(source, DeviceTensor):
            _recorded(func, (target.inner, source.inner), {})
        else:
            target.inner.copy_(_to_device(source, source, non_blocking))
        return target
    assert isinstance(source, DeviceTensor)
    return _to_host(target, source.inner.to(target.dtype).expand(target.shape), non_blocking)


def _to_device(source: Tensor, values: Tensor, queued: bool) -> Tensor:
    """Start a copy of ``values``, from ``source`` on the host, to the device."""
    assert clock.tape is None, "a copy from the host is not to be captured: its memory is used again"
    if values.numel() == 0:
        return values
    if not queued or not clock.is_pinned(source):
        pinned = "" if clock.is_pinned(source) else " from memory that is not pinned"
        clock.wait(f"a copy of {tuple(source.shape)} {source.dtype} to the device{pinned}")
        return values.clone()
    clock.queue.append((source, source.clone(), False))
    return values.clone()


def _to_host(target: Tensor, values: Tensor, queued: bool) -> Tensor:
    """Start a copy of ``values`` on the device to ``target`` on the host."""
    if values.numel() == 0:
        return target
    if not queued or not clock.is_pinned(target):
        clock.wait("a copy from the device to the host")
        return target.copy_(values)
    clock.queue.append((target, values.clone(), True))
    if target.is_contiguous():
        target.view(-1).view(torch.uint8).fill_(POISON)
    return target


COPIES = {"aten._to_copy": _to_copy, "aten.copy_": _copy}
