"""Copies between host and device that do not make the host wait."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sglang_plug.contracts.text.media import MediaArray


def upload(values: Ordered[int] | Ordered[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return ``values`` as a tensor on ``device``. The host does not wait: the copy is queued from pinned memory."""
    return send(torch.tensor(values, dtype=dtype), device)


def upload_array(media: MediaArray, device: torch.device) -> Tensor:
    """Return an array of media as a tensor on ``device``, in its own dtype; queued like ``upload``."""
    values = torch.frombuffer(bytearray(media.data), dtype=getattr(torch, media.dtype))
    return send(values.view(media.shape), device)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a host tensor to ``device``; on a CPU return the same tensor. The host does not wait, and may reuse its
    tensor.
    """
    if device.type == "cpu":
        return tensor
    return pinned(tensor, device).to(device, non_blocking=True)


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a pinned copy for CUDA devices, so that the host does not wait and may reuse its tensor; else the same
    tensor.
    """
    return tensor.pin_memory() if device.type == "cuda" else tensor


@dataclass(frozen=True, slots=True)
class AsyncHostCopy:
    """Host copies of a device's tensors, queued after the work that computes them and before any later work."""

    tensors: tuple[Tensor, ...]
    event: torch.cuda.Event | None

    @classmethod
    def of(cls, *tensors: Tensor) -> AsyncHostCopy:
        """Queue the copies; a CPU's tensors are used as they are. All tensors are on one device."""
        if not tensors or not tensors[0].is_cuda:
            return cls(tensors, None)
        copies = tuple(torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors)
        for copy, tensor in zip(copies, tensors, strict=True):
            copy.copy_(tensor, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(tensors[0].device))
        return cls(copies, event)

    @property
    def ready(self) -> bool:
        """True if ``read`` would not wait."""
        return self.event is None or bool(self.event.query())  # type: ignore[no-untyped-call]

    def read(self) -> tuple[Tensor, ...]:
        """Return the tensors on the host, waiting for their copies but for nothing that was queued later."""
        if self.event is not None:
            self.event.synchronize()
        return self.tensors
