"""A digest of the weights that are served, computed in the background."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn

from sglang_plug_backends.background_thread import background_thread

logger = logging.getLogger(__name__)

CHUNK = 16 << 20
"""Bytes of a tensor that are copied to the host at once."""
DEPTH = 4
"""Depth to which the attributes of a module are searched for tensors."""


class WeightsDigest:
    """The digest of all tensors of a model, whole: a sample could miss a change.

    It is taken of the model in memory and not of files, which may have been replaced since they were read. Hashing
    takes about a second per GB, and leaves the interpreter to other threads.

    Args:
        model: its weights are loaded, and are not changed afterwards.
    """

    def __init__(self, model: nn.Module) -> None:
        self._value: bytes | None = None
        self._cancelled = False
        self._tensors = list(model_tensors(model))  # now: others may attach adapters to the model later
        self._thread = background_thread(self._run, "kv-weights-digest")
        self._thread.start()

    @property
    def value(self) -> bytes | None:
        """The digest; ``None`` while it is not known."""
        return self._value

    def wait(self, seconds: float) -> None:
        """Wait for the digest, at most so long."""
        self._thread.join(seconds)

    def cancel(self) -> None:
        """Stop; the model is no longer referred to soon afterwards."""
        self._cancelled = True

    def _run(self) -> None:
        tensors, self._tensors = self._tensors, []
        try:
            digest = blake2b(digest_size=32)
            for name, tensor in tensors:
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
                for part in host_chunks(tensor):
                    if self._cancelled:
                        return
                    digest.update(part)
            self._value = digest.digest()
        except Exception:
            logger.exception("The digest of the weights failed: KV stores are not used")


def model_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a model once, with a name: parameters, buffers, and those in attributes of modules."""
    visited: set[int] = set()
    for name, module in model.named_modules():
        for key, value in sorted(vars(module).items()):
            if key not in ("_modules", "training"):
                yield from _tensors(f"{name}.{key}", value, visited, DEPTH)


def _tensors(name: str, value: Any, visited: set[int], depth: int) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        if id(value) not in visited and value.device.type != "meta":
            visited.add(id(value))
            yield name, value.detach()
        return
    if depth == 0 or isinstance(value, nn.Module | str | bytes | type):
        return
    for key, item in _items(value):
        yield from _tensors(f"{name}.{key}", item, visited, depth - 1)


def _items(value: Any) -> list[tuple[Any, Any]]:
    """Return the parts of a container or a dataclass; nothing for any other object."""
    if isinstance(value, Mapping):
        return sorted(value.items(), key=lambda item: str(item[0]))
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value):
        return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    return []


def host_chunks(tensor: Tensor) -> Iterator[memoryview]:
    """Yield the content of a tensor in row-major order, as bytes on the host."""
    if tensor.numel() == 0:
        return
    flat = tensor.reshape(-1) if tensor.is_contiguous() else tensor.contiguous().reshape(-1)
    flat = flat.view(torch.uint8) if flat.dtype != torch.bool else flat.to(torch.uint8)
    for start in range(0, flat.numel(), CHUNK):
        yield flat[start : start + CHUNK].cpu().numpy().data
