"""Memory that the parts of a started engine take, for clients that read it from ``/server_info``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor, nn

GIB = 1 << 30
DIGITS = 4


def memory_usage(
    model: object, kv_bytes: int, tokens: int, taken: Mapping[str, int], *, weights: str, executors: tuple[str, ...]
) -> dict[str, Any]:
    """Return the memory of weights, KV pool and executors in GiB, and the number of tokens that the pool holds.

    Args:
        model: its tensors are counted where no memory is measured, as on the host.
        kv_bytes: size of the KV pool.
        tokens: capacity of the KV pool.
        taken: the bytes that stages of the start took, as ``MemoryLedger`` measured them.
        weights: the stage that loads the weights.
        executors: the stages that build executors of steps, which capture graphs.
    """
    of_weights = taken[weights] if weights in taken else tensor_bytes(model)
    of_executors = sum(taken.get(stage, 0) for stage in executors)
    sizes = {"weight": of_weights, "kvcache": kv_bytes, "graph": of_executors}
    return {**{name: round(size / GIB, DIGITS) for name, size in sizes.items()}, "token_capacity": tokens}


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
