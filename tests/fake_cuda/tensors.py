"""A device ``cuda`` whose tensors lie in the host's memory: values are right, and who waits for them is caught.

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
"""Bytes of the host's memory that a copy from the device has not reached."""
FREE = frozenset({"aten.detach", "aten.view", "aten._unsafe_view", "aten.alias", "aten.slice", "aten.select"})
FREE |= {"aten.unsqueeze", "aten.squeeze", "aten.expand", "aten.transpose", "aten.t", "aten.permute", "aten.split"}
FREE |= {"aten.split_with_sizes", "aten.unbind", "aten.as_strided", "aten.empty", "aten.empty_like", "aten.new_empty"}
FREE |= {"aten.empty_strided", "aten.new_empty_strided", "aten.view_as"}
"""Operators that launch nothing."""


class WaitError(AssertionError):
    """The host would wait for the device, or the device for the host."""


@dataclass
class Clock:
    """What is under way on the device, and what was done there."""

    strict: bool = False
    """Whether waiting is an error."""
    executed: Counter[str] = field(default_factory=Counter)
    """Operators that were called on the device's tensors, and kernels that were launched, by name."""
    waits: list[str] = field(default_factory=list)
    """What waited while that was allowed."""
    fresh: float = torch.nan
    """What is found in memory that was not written to yet."""
    queue: list[tuple[Tensor, Tensor, bool]] = field(default_factory=list)
    """Copies: where on the host, the values, and whether they are on their way to there."""
    done: int = 0
    """Copies that were done before those."""
    tape: list[Callable[[], None]] | None = None
    """What a graph that is being captured will do again."""
    pins: dict[int, Tensor] = field(default_factory=dict)
    """Pinned memory by its address."""

    def wait(self, why: str) -> None:
        """Note that the host waits."""
        if self.strict or self.tape is not None:
            raise WaitError(why)
        self.waits.append(why)
        self.finish()

    def finish(self) -> None:
        """All that was queued is done."""
        self.settle(self.queued)

    @property
    def queued(self) -> int:
        """How many copies were queued so far."""
        return self.done + len(self.queue)

    @torch.inference_mode()
    def settle(self, count: int) -> None:
        """The first ``count`` copies that were ever queued are done."""
        ready = self.queue[: max(0, count - self.done)]
        del self.queue[: len(ready)]
        self.done += len(ready)
        for host, values, arriving in ready:
            if arriving:
                host.copy_(values)
            else:
                assert _same_bytes(host, values), "the host wrote to memory that the device was still to read"

    def launches(self) -> Counter[str]:
        """What was executed, without operators that only look at memory in another way."""
        return Counter({name: count for name, count in self.executed.items() if name not in FREE})

    def pin(self, tensor: Tensor) -> Tensor:
        """``tensor``, from now on as if in pinned memory."""
        if tensor.numel():
            self.pins[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def is_pinned(self, tensor: Tensor) -> bool:
        """True if its memory was pinned, or there is none."""
        return tensor.numel() == 0 or tensor.untyped_storage().data_ptr() in self.pins


def _same_bytes(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8))


clock = Clock()
"""Of the one device there is."""


class DeviceTensor(Tensor):
    """A tensor on the device. ``inner`` has its values."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> DeviceTensor:
        with torch.inference_mode(inner.is_inference()):
            made = Tensor._make_wrapper_subclass(
                cls,
                inner.shape,
                strides=inner.stride(),
                storage_offset=inner.storage_offset(),
                dtype=inner.dtype,
                layout=inner.layout,
                device=CUDA,
                requires_grad=False,
            )
        made.inner = inner
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"DeviceTensor({tuple(self.shape)}, {self.dtype})"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return execute(func, args, kwargs or {})


def is_cuda(device: Any) -> bool:
    """True for the device that is played."""
    return device is not None and not isinstance(device, bool) and torch.device(device).type == "cuda"


class Operators(TorchDispatchMode):
    """Tensors that are made on the device from nothing, or from the host's."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        if is_cuda(kwargs.get("device")) and not any(isinstance(one, DeviceTensor) for one in tensors):
            if str(func).startswith("aten._to_copy"):
                return DeviceTensor.__torch_dispatch__(func, types, args, kwargs)
            return create(func, args, kwargs)
        return func(*args, **kwargs)


def execute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """``func`` on the device; raises where the real one would, or would wait."""
    if func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
        with Operators():  # what it makes on the device from nothing
            return func.decompose(*args, **kwargs)
    name = str(func).rpartition(".")[0]
    clock.executed[name] += 1
    if name in COPIES:
        return COPIES[name](func, *args, **kwargs)
    _check_devices(func, name, args, kwargs)
    _check_values(func, name, args, kwargs)
    target = kwargs.get("device")
    assert target is None or torch.device(target).type == "cuda", f"{func} of a device's tensor to {target}"
    given = {id(one.inner): one for one in tree_leaves((args, kwargs)) if isinstance(one, DeviceTensor)}
    found = _recorded(func, _inner(args), _inner({**kwargs, "device": "cpu"} if target is not None else kwargs))
    assert all(one.shape == one.inner.shape for one in given.values()), "tensors of the device are not resized"
    if "empty" in name:
        _spoil(found)
    return tree_map(lambda one: _outer(one, given) if isinstance(one, Tensor) else one, found)


def _outer(inner: Tensor, given: dict[int, DeviceTensor]) -> Tensor:
    """The tensor that was worked on in place, or a new one."""
    same = given.get(id(inner))
    return DeviceTensor(inner) if same is None else same


def on_device(inner: Tensor) -> Tensor:
    """``inner``, seen as a tensor of the device."""
    return DeviceTensor(inner)


def create(func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """A new tensor on the device, by an operator that was asked to make it there."""
    clock.executed[str(func).rpartition(".")[0]] += 1
    found = _recorded(func, args, {**kwargs, "device": torch.device("cpu"), "pin_memory": None})
    if "empty" in str(func):
        _spoil(found)
    return on_device(found)


def _spoil(found: Tensor) -> None:
    """Whoever reads it before it was written is to be seen."""
    if found.is_floating_point():
        found.fill_(clock.fresh)
    elif found.dtype != torch.bool:
        found.fill_(0 if clock.fresh == 0 else torch.iinfo(found.dtype).max)


def _inner(tree: Any) -> Any:
    return tree_map(lambda one: one.inner if isinstance(one, DeviceTensor) else one, tree)


def _recorded(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """``func`` of the host's tensors; again whenever a graph is replayed that is being captured."""
    found = func(*args, **kwargs)
    if clock.tape is None or str(func).rpartition(".")[0] in FREE:
        return found
    given = {id(one) for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
    made = [one for one in tree_leaves(found) if isinstance(one, Tensor)]

    def again() -> None:
        anew = [one for one in tree_leaves(func(*args, **kwargs)) if isinstance(one, Tensor)]
        for held, values in zip(made, anew, strict=True):
            if id(held) not in given:
                held.copy_(values)

    clock.tape.append(again)
    return found


def _check_devices(func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> None:
    """Raise for tensors of the host: but for single numbers, the device cannot read them."""
    hosts = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor) and one.device.type == "cpu"]
    if not hosts:
        return
    if name in ("aten.index", "aten.index_put", "aten.index_put_", "aten._index_put_impl_"):
        clock.wait(f"{func} with an index or values of the host copies them, which waits")
    elif any(one.dim() > 0 for one in hosts):
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, found cuda:0 and cpu")


def _check_values(func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> None:
    """Raise for what the host must know of the device's values."""
    if name.startswith("aten.index"):
        indices = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else []
        if any(isinstance(one, Tensor) and one.dtype in (torch.bool, torch.uint8) for one in indices):
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
    # torch itself takes pinned memory for what is queued
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
    """``values``, of ``source`` on the host, on their way to the device."""
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
    """Bring ``values`` of the device to ``target`` on the host."""
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
