"""Accounting of a device's memory by stage of the start, and the error messages when it does not suffice."""

from __future__ import annotations

import gc
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sglang_plug.config import ConfigError
from sglang_plug.system.out_of_memory import is_out_of_memory

logger = logging.getLogger(__name__)

GIB = 1 << 30
BEFORE = "before the start"
"""Entry of the ledger for memory that was taken already, by other processes and by the device's own runtime."""
STEP_ADVICE = (
    "send fewer or shorter requests at once, or start the server with a lower --mem-fraction-static, "
    "--max-total-tokens, --chunked-prefill-size or --max-running-requests"
)
TRIED = re.compile(r"[Tt]ried to allocate ([\d.]+ (?:bytes|[KMGT]i?B))")


class DeviceMemory(Protocol):
    """The memory of a device, in bytes."""

    def total(self) -> int:
        """Return the total memory of the device."""

    def free(self) -> int:
        """Return the free memory; memory that torch keeps of freed tensors counts as taken."""

    def release(self) -> None:
        """Let torch return the memory that it keeps of freed tensors."""


class CudaMemory:
    """The memory of a CUDA device as its driver counts it: with contexts, kernels, libraries and other processes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def total(self) -> int:
        """Return the total memory of the device."""
        return torch.cuda.mem_get_info(self._device)[1]

    def free(self) -> int:
        """Return the free memory, after waiting for queued work."""
        torch.cuda.synchronize(self._device)
        return torch.cuda.mem_get_info(self._device)[0]

    def release(self) -> None:
        """Empty torch's cache."""
        gc.collect()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()


def device_memory(device: torch.device) -> DeviceMemory | None:
    """Return the memory of ``device``; ``None`` if it is the system's, which cannot be accounted for."""
    return CudaMemory(device) if device.type == "cuda" else None


@dataclass(slots=True)
class Stage:
    """A stage of the start while its memory is measured."""

    counted: bool = True
    """False if the account does not list the stage."""

    def leave_out(self) -> None:
        """Leave the stage out of the account, because it is skipped."""
        self.counted = False


class MemoryLedger:
    """The memory that each stage of the start took, in bytes and in the order of the stages.

    Args:
        memory: the device's memory; ``None``: nothing is measured.
    """

    def __init__(self, memory: DeviceMemory | None) -> None:
        self.memory = memory
        self.taken: dict[str, int] = {}
        if memory is not None:
            self.taken[BEFORE] = memory.total() - memory.free()

    @contextmanager
    def stage(self, name: str, advice: str, *, peak: bool = False) -> Iterator[Stage]:
        """Measure the memory that is taken inside the context, and record it.

        Args:
            name: the stage, as shown to the user.
            advice: what to do if the memory does not suffice.
            peak: also count memory that is freed again.

        Raises:
            ConfigError: the memory does not suffice.
        """
        memory, stage = self.memory, Stage()
        if memory is None:
            yield stage
            return
        memory.release()
        before = memory.free()
        with self.guard(name, advice):
            yield stage
        if not stage.counted:
            return
        if not peak:
            memory.release()
        taken = max(0, before - memory.free())
        memory.release()
        self.enter(name, taken)

    @contextmanager
    def guard(self, name: str, advice: str) -> Iterator[None]:
        """Turn out-of-memory errors into a ``ConfigError`` that names the stage and says what to do."""
        try:
            yield
        except Exception as error:
            if self.memory is None or not is_out_of_memory(error):
                raise
            raise ConfigError(f"{self.shortage(name, error)}; {advice}") from error

    def enter(self, name: str, taken: int) -> None:
        """Record the memory that a stage took; an earlier record of the stage is replaced."""
        self.taken[name] = taken
        if self.memory is not None:
            logger.info("Memory: %s %s, avail mem=%s", name, gigabytes(taken), gigabytes(self.memory.free()))

    def shortage(self, name: str, error: BaseException) -> str:
        """Describe the stage that found no room, and the stages that took the memory."""
        attempt = f" (tried to allocate {tried})" if (tried := _tried(error)) else ""
        if self.memory is None:
            return f"out of memory: no room for {name}{attempt}"
        free, total = gigabytes(self.memory.free()), gigabytes(self.memory.total())
        return f"out of memory: no room for {name}{attempt}; {free} of {total} are free; taken: {self.account()}"

    def of_step(self, error: Exception) -> str | None:
        """Return the message for a step that failed for lack of memory; ``None`` if ``error`` is another error."""
        if not is_out_of_memory(error):
            return None
        return f"{self.shortage('a step', error)}; {STEP_ADVICE}"

    def account(self) -> str:
        """Return the entries as readable text."""
        return ", ".join(f"{name} {gigabytes(taken)}" for name, taken in self.taken.items())


def gigabytes(count: float) -> str:
    """Format a number of bytes for the log; a GB is ``2**30`` bytes."""
    return f"{count / GIB:.2f} GB"


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


def _tried(error: BaseException | None) -> str:
    while error is not None:
        if match := TRIED.search(str(error)):
            return match[1]
        error = error.__cause__ or error.__context__
    return ""
