"""Does code that queues work on a device wait for it? Tried on the device ``meta``, whose tensors have no values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

META = torch.device("meta")


class Asynchronous(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises if something would make the host wait for the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        devices = {tensor.device.type for tensor in tensors if tensor.dim() > 0}
        name = str(func)
        if name == "aten._to_copy.default" and kwargs.get("device") == META and devices == {"cpu"}:
            assert kwargs.get("non_blocking"), "a copy to the device is waited for"
        else:
            assert len(devices) <= 1, f"{name} mixes devices, which copies and waits"
        if "meta" in devices:
            result = func(*args, **kwargs)
            outs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
            assert all(output.device.type == "meta" for output in outs), f"{name} reads from the device"
            assert not any(index_tensor.dtype == torch.bool for index_tensor in _indices(name, args)), (
                f"{name} counts on the device"
            )
            return result
        return func(*args, **kwargs)


def _indices(name: str, args: Any) -> list[Tensor]:
    return (
        [index for index in args[1] if index is not None] if name.startswith(("aten.index.", "aten.index_put")) else []
    )


class NoLists(TorchFunctionMode):
    """Raises if a tensor on the device is made of numbers, which copies and waits unseen by what torch dispatches."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor:
            assert torch.device(kwargs.get("device") or "cpu") != META, "torch.tensor waits for the device"
        if func in (Tensor.__getitem__, Tensor.__setitem__) and args[0].device == META:
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            assert not any(isinstance(part, list) for part in parts), "an index of numbers waits for the device"
        return func(*args, **kwargs)


@contextmanager
def asynchronous() -> Iterator[None]:
    """The device computes asynchronously, and whoever waits for it fails."""
    with NoLists(), Asynchronous():  # type: ignore[no-untyped-call]
        yield
