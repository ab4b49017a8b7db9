"""Who takes how much of a device's memory, and what a user is told when it does not suffice."""

from __future__ import annotations

import gc
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from sglang_plug.config import ConfigError

logger = logging.getLogger(__name__)

GIB = 1 << 30
BEFORE = "before the start"
"""Entry of the ledger: what was taken already, by other processes and by the device's own runtime."""
SIGNS = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Parts of the messages of torch's allocators, CUDA's driver, Triton and cuBLAS."""
STEP_ADVICE = (
    "send fewer or shorter requests at once, or start the server with a lower --mem-fraction-static, "
    "--max-total-tokens, --chunked-prefill-size or --max-running-requests"
)
TRIED = re.compile(r"[Tt]ried to allocate ([\d.]+ (?:bytes|[KMGT]i?B))")


class DeviceMemory(Protocol):
    """What a device tells of its memory, in bytes."""

    def total(self) -> int:
        """All there is."""

    def free(self) -> int:
        """What nobody has; what torch keeps of freed tensors counts as taken."""

    def release(self) -> None:
        """Let torch give back what it keeps of freed tensors."""


class CudaMemory:
    """As CUDA's driver counts it: with contexts, kernels, libraries and other processes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def total(self) -> int:
        """All there is."""
        return torch.cuda.mem_get_info(self._device)[1]

    def free(self) -> int:
        """What nobody has, once the work that was begun is done."""
        torch.cuda.synchronize(self._device)
        return torch.cuda.mem_get_info(self._device)[0]

    def release(self) -> None:
        """Empty torch's cache."""
        gc.collect()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()


def device_memory(device: torch.device) -> DeviceMemory | None:
    """The memory of ``device``; ``None`` where it is the system's, which cannot be accounted for."""
    return CudaMemory(device) if device.type == "cuda" else None


class MemoryLedger:
    """What each stage of the start took, in bytes and in the order of the stages.

    Args:
        memory: the device's; ``None``: nothing is measured.
    """

    def __init__(self, memory: DeviceMemory | None) -> None:
        self.memory = memory
        self.taken: dict[str, int] = {}
        if memory is not None:
            self.taken[BEFORE] = memory.total() - memory.free()

    @contextmanager
    def stage(self, name: str, advice: str, *, peak: bool = False) -> Iterator[None]:
        """Measure what is taken meanwhile, and enter it.

        Args:
            name: of the stage, as the user is to read it.
            advice: what to do if the memory does not suffice.
            peak: count what is freed again, too.

        Raises:
            ConfigError: the memory does not suffice.
        """
        memory = self.memory
        if memory is None:
            yield
            return
        memory.release()
        before = memory.free()
        with self.guard(name, advice):
            yield
        if not peak:
            memory.release()
        taken = max(0, before - memory.free())
        memory.release()
        self.enter(name, taken)

    @contextmanager
    def guard(self, name: str, advice: str) -> Iterator[None]:
        """Turn errors that say that memory does not suffice into a ``ConfigError`` that says what for."""
        try:
            yield
        except Exception as error:
            if self.memory is None or not is_out_of_memory(error):
                raise
            raise ConfigError(f"{self.shortage(name, error)}; {advice}") from error

    def enter(self, name: str, taken: int) -> None:
        """Note what a stage took; what is known of it already is replaced."""
        self.taken[name] = taken
        if self.memory is not None:
            logger.info("Memory: %s %s, avail mem=%s", name, gigabytes(taken), gigabytes(self.memory.free()))

    def shortage(self, name: str, error: BaseException) -> str:
        """What did not find room, and who has it."""
        wanted = f" (tried to allocate {tried})" if (tried := _tried(error)) else ""
        if self.memory is None:
            return f"out of memory: no room for {name}{wanted}"
        free, total = gigabytes(self.memory.free()), gigabytes(self.memory.total())
        return f"out of memory: no room for {name}{wanted}; {free} of {total} are free; taken: {self.account()}"

    def of_step(self, error: Exception) -> str | None:
        """What to tell of a step that failed for lack of memory; ``None`` if ``error`` says something else."""
        if not is_out_of_memory(error):
            return None
        return f"{self.shortage('a step', error)}; {STEP_ADVICE}"

    def account(self) -> str:
        """The entries, for people."""
        return ", ".join(f"{name} {gigabytes(taken)}" for name, taken in self.taken.items())


def is_out_of_memory(error: BaseException | None) -> bool:
    """True if ``error``, or what it came of, says that memory did not suffice.

    A capture that fails for lack of memory ends with another error, which tells of the first as its context.
    """
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        if isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS):
            return True
        error = error.__cause__ or error.__context__
    return False


def gigabytes(count: float) -> str:
    """As the log writes bytes; a GB has ``2**30`` of them."""
    return f"{count / GIB:.2f} GB"


def _tried(error: BaseException | None) -> str:
    while error is not None:
        if found := TRIED.search(str(error)):
            return found[1]
        error = error.__cause__ or error.__context__
    return ""
