"""Numbers on their way between host and device, without the host waiting where it need not."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass

import torch
from torch import Tensor

from .media import MediaArray


def upload(values: Ordered[int] | Ordered[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """``values`` as a tensor on ``device``. The host does not wait: the copy is queued from pinned memory."""
    return send(torch.tensor(values, dtype=dtype), device)


def upload_array(found: MediaArray, device: torch.device) -> Tensor:
    """An array of media as a tensor on ``device``, in its own dtype; queued as by ``upload``."""
    values = torch.frombuffer(bytearray(found.data), dtype=getattr(torch, found.dtype))
    return send(values.view(found.shape), device)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on ``device``; on a CPU the same. The host does not wait, and may write to its own again."""
    if device.type == "cpu":
        return tensor
    return pinned(tensor, device).to(device, non_blocking=True)


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy that ``device`` can take without the host waiting, which may write to its own again; else the same."""
    return tensor.pin_memory() if device.type == "cuda" else tensor


@dataclass(frozen=True, slots=True)
class Fetched:
    """Copies of a device's tensors, queued behind what makes them and ahead of what is queued next."""

    tensors: tuple[Tensor, ...]
    event: torch.cuda.Event | None

    @classmethod
    def of(cls, *tensors: Tensor) -> Fetched:
        """Queue the copies; a CPU's tensors are taken as they are. All of them are on one device."""
        if not tensors or not tensors[0].is_cuda:
            return cls(tensors, None)
        copies = tuple(torch.empty(one.shape, dtype=one.dtype, pin_memory=True) for one in tensors)
        for copy, one in zip(copies, tensors, strict=True):
            copy.copy_(one, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(tensors[0].device))
        return cls(copies, event)

    @property
    def ready(self) -> bool:
        """True if ``read`` would not wait."""
        return self.event is None or bool(self.event.query())  # type: ignore[no-untyped-call]

    def read(self) -> tuple[Tensor, ...]:
        """The tensors on the host, once they are there; waits for nothing that was queued later."""
        if self.event is not None:
            self.event.synchronize()
        return self.tensors
