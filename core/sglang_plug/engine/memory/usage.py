"""The bytes of a model's tensors."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor, nn


def tensor_bytes(model: object) -> int:
    """Return the bytes of all tensors below ``model``, packed weights included; shared host memory counts once."""
    sizes: dict[int, int] = {}
    visited, pending = set[int](), [model]
    while pending:
        item = pending.pop()
        if id(item) in visited:
            continue
        visited.add(id(item))
        if isinstance(item, Tensor):
            if item.device.type == "cpu":
                storage = item.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
            else:
                sizes[id(item)] = item.numel() * item.element_size()
        elif isinstance(item, nn.Module):
            pending.extend([*item.parameters(recurse=False), *item.buffers(recurse=False), *vars(item).values()])
            pending.extend(item.children())
        elif isinstance(item, list | tuple):
            pending.extend(item)
        elif is_dataclass(item) and not isinstance(item, type):
            pending.extend(_values(item))
    return sum(sizes.values())


def _values(item: Any) -> list[Any]:
    """Return the values of a dataclass; those in its dictionary are read from there, as reading some fields raises."""
    if hasattr(item, "__dict__"):
        return list(vars(item).values())
    return [getattr(item, field.name, None) for field in fields(item)]
