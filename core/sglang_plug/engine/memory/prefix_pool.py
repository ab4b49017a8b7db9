"""The prefix cache and the KV pool as step extensions see them; and the return of unused memory."""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from torch import Tensor

from sglang_plug.contracts.extension.memory_phases import StoredStatePhase
from sglang_plug.contracts.extension.views import SequenceView, WriteSlots
from sglang_plug.contracts.model.batch import KVPool
from sglang_plug.engine.loading.checkpoint_formats import Choice, config_fields
from sglang_plug.engine.loading.kv_dtype import kv_dtype_name
from sglang_plug.engine.loading.resolve import Resolved
from sglang_plug.system.freed_memory import return_freed_memory
from sglang_plug.system.memory_advice import memory_advice

from .kv_slots import KVAllocator

KINDS = ("model", "attention", "kernels", "quantization")
"""Kinds of the components whose code determines keys and values."""
Run = tuple[int, int]
"""A range of slots: start and exclusive end."""
DONT_NEED = 4
"""``MADV_DONTNEED`` of Linux; Python names it only on systems that have it."""
MIN_BYTES = 64 << 10
"""Smallest run in bytes for which the system call is worthwhile."""


@dataclass(frozen=True, slots=True)
class EnginePrefixPool:
    """The prefix cache and KV pool of one engine. A ``PrefixPool``."""

    allocator: KVAllocator
    kv: KVPool
    stored_states: Ordered[StoredStatePhase]
    """The extensions whose states a sequence needs to continue from a stored prefix."""
    resolved: Resolved
    return_on_other_ranks: Callable[[Iterable[Run]], None]
    """Returns the memory of runs of slots on the other ranks."""

    @property
    def capacity(self) -> int:
        """Number of slots of the pool."""
        return self.allocator.pool.capacity

    @property
    def used(self) -> bool:
        """True once a slot was taken."""
        return self.allocator.pool.used

    def evict(self, tokens: int) -> int:
        """Evict unused prefixes; see ``PrefixPool.evict``."""
        return self.allocator.evict(tokens)

    def return_memory(self) -> None:
        """Return the memory of free slots, and of the process's allocator, to the system."""
        runs = self.allocator.pool.unused_runs()
        return_pages(self.kv, runs)
        self.return_on_other_ranks(runs)
        return_freed_memory()

    @property
    def page_size(self) -> int:
        """Prefixes are cached in whole pages of this many tokens."""
        return self.allocator.pool.page_size

    def identity(self) -> Mapping[str, str]:
        """Return what determines keys and values besides the tokens and the content of the weights."""
        resolved, kv = self.resolved, self.kv
        components = {kind: _named(choice) for kind in KINDS if (choice := resolved.choices.get(kind)) is not None}
        return {
            **components,
            "architecture": resolved.checkpoint.architecture,
            "config": json.dumps(config_fields(resolved.checkpoint), sort_keys=True, default=repr),
            "dtype": str(resolved.dtype),
            "device": resolved.device.type,
            "kv_dtype": kv_dtype_name(resolved.kv_dtype),
            "kv_scales": repr((kv.k_scale, kv.v_scale)),
            "page_size": str(self.page_size),
            "tp_size": str(resolved.config.parallel.tp_size),
        }

    def cached(self, sequence: SequenceView) -> int:
        """Return the number of leading tokens with which the sequence could begin now."""
        return len(self.allocator.match(sequence).slots)

    def cached_kv(self, sequence: SequenceView) -> int:
        """Return the number of leading tokens whose keys and values are in the prefix cache."""
        return len(self.allocator.match_kv(sequence).slots)

    def insert(self, sequence: SequenceView, length: int, write: WriteSlots) -> int:
        """Put the first ``length`` tokens of a waiting sequence into the prefix cache; see ``PrefixPool.insert``."""
        return self.allocator.insert(sequence, length, write)


def _named(choice: Choice) -> str:
    plugin = choice.component.plugin
    return f"{choice.component.spec.name} {plugin.distribution} {plugin.version}"


def return_pages(kv: KVPool, runs: Iterable[Run]) -> int:
    """Return the whole memory pages that contain only slots of ``runs``; their bytes. The slots are zeros then.

    The pool's memory must be private and anonymous, as ``batch.zeros`` maps it on the host; on other devices, and on
    systems other than Linux, nothing happens.
    """
    advise = memory_advice(DONT_NEED)
    if advise is None or any(part.device.type != "cpu" for part in kv.k[:1]):
        return 0
    runs = list(runs)
    return sum(_return(part, run, advise) for part in kv.parts for run in runs)


def _return(part: Tensor, run: Run, advise: Callable[[int, int], bool]) -> int:
    row = part.stride(0) * part.element_size()
    start, end = (part.data_ptr() + slot * row for slot in run)
    start, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    return end - start if end - start >= MIN_BYTES and advise(start, end - start) else 0
