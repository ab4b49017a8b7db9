"""The size of the KV pool: as configured, or whatever memory weights, steps and graphs leave."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from sglang_plug.config import ConfigError
from sglang_plug.contracts.extension.memory_phases import MemoryPhase, MemoryRequest
from sglang_plug.contracts.model.batch import KVPool
from sglang_plug.engine.execution.executors import make_executor
from sglang_plug.engine.execution.rank_components import RankComponents
from sglang_plug.engine.execution.runner import Runner
from sglang_plug.engine.extensions.points import ExtensionPoints
from sglang_plug.engine.loading.resolve import Resolved
from sglang_plug.engine.memory.budget import DeviceMemory, MemoryLedger, gigabytes
from sglang_plug.engine.memory.kv_slots import SlotPool
from sglang_plug.engine.messages.rank_messages import Ranks
from sglang_plug.system.host_memory import available_bytes

from .profiling import LargestSteps, executor_bytes

logger = logging.getLogger(__name__)

CPU_FRACTION, ACCELERATOR_FRACTION = 0.5, 0.9
WEIGHTS, STEP, KV_POOL = "weights", "largest step", "KV pool"
"""Stages of the start that take memory."""
Requests = tuple[tuple[MemoryPhase, MemoryRequest], ...]
COUNTED = 2**20
"""Slots of a model without attention, unless its longest sequence needs more: they are counted, but take no memory."""


def advice(stage: str, resolved: Resolved) -> str:
    """Return what a user can do if memory does not suffice for ``stage``."""
    return {
        WEIGHTS: "serve a smaller model or one in fewer bits (--quantization), or end other processes on the device",
        STEP: f"lower --chunked-prefill-size (now {resolved.chunk_size}) or --max-running-requests (now "
        f"{resolved.max_running})",
        KV_POOL: "lower --mem-fraction-static or --max-total-tokens",
    }[stage]


@dataclass(frozen=True, slots=True)
class Capacity:
    """The sizes of the pools."""

    slots: int
    """Number of slots of the KV pool."""
    requests: Requests = ()
    """Memory that step extensions take in addition."""


def pool_capacity(
    components: RankComponents, ledger: MemoryLedger, extensions: ExtensionPoints, ranks: Ranks | None = None
) -> Capacity:
    """Return the configured capacity, or else the largest that fits and can be used.

    Raises ``ConfigError`` if there is no room for the pools.
    """
    resolved = components.resolved
    check_pool_options(resolved)
    cache, page = resolved.config.cache, resolved.config.cache.page_size
    useful = resolved.max_running * (resolved.context_length + page)
    if cache.max_total_tokens is not None:
        if resolved.causal:
            room_left = _check_room(cache.max_total_tokens, resolved, ledger)
            return Capacity(cache.max_total_tokens, _requests(extensions.start.memory, room_left, resolved, ledger)[0])
        return Capacity(min(cache.max_total_tokens, useful))
    if not resolved.causal:
        return Capacity(useful)  # slots are only counted: an encoder keeps no keys and values
    if (memory := ledger.memory) is None:
        room, fraction = _host_room(resolved)
    else:
        _profile(components, ledger, extensions, memory, ranks)
        room, fraction = _device_room(resolved, ledger, memory)
    requests, room = _requests(extensions.start.memory, room, resolved, ledger)
    each = bytes_per_slot(resolved)
    slots = min(int(room // each) if each else max(COUNTED, resolved.context_length + page), useful)
    if slots < 2 * page:
        taken = f" (taken: {ledger.account()})" if ledger.taken else ""
        raise ConfigError(
            f"no memory for a KV pool: {gigabytes(max(room, 0))} are left of the {fraction} that --mem-fraction-static "
            f"allows{taken}, and a slot takes {bytes_per_slot(resolved)} bytes; raise --mem-fraction-static, set "
            f"--max-total-tokens, or serve a smaller model; or {advice(STEP, resolved)}"
        )
    return Capacity(slots, requests)


def _requests(
    extensions: Iterable[MemoryPhase], room: float, resolved: Resolved, ledger: MemoryLedger
) -> tuple[Requests, float]:
    """Return what step extensions take of ``room`` bytes, and what they leave.

    Raises ``ConfigError`` if it does not suffice.
    """
    requests: list[tuple[MemoryPhase, MemoryRequest]] = []
    for extension in extensions:
        if (request := extension.memory_request(room)) is not None:
            requests.append((extension, request))
            is_elsewhere = request.on_host and ledger.memory is not None
            if request.on_host:
                _check_host(request, _host_bytes(resolved) if is_elsewhere else room)
            room -= 0 if is_elsewhere else request.bytes
    return tuple(requests), room


def _check_host(request: MemoryRequest, room: float) -> None:
    """Raise ``ConfigError`` if an extension takes more than ``room`` bytes of the host's memory."""
    if request.bytes > room:
        raise ConfigError(
            f"no memory for {request.name}: {gigabytes(request.bytes)} are configured, and {gigabytes(max(room, 0))} "
            f"of the host's memory are left for it; {request.advice}"
        )


def check_pool_options(resolved: Resolved) -> None:
    """Raise ``ConfigError`` for a page size or pool size that is invalid, whatever memory there is."""
    cache, page = resolved.config.cache, resolved.config.cache.page_size
    if page < 1:
        raise ConfigError(f"--page-size must be at least 1, got {page}")
    if cache.max_total_tokens is not None and cache.max_total_tokens < 2 * page:
        raise ConfigError(f"--max-total-tokens must be at least {2 * page}, got {cache.max_total_tokens}")


def _check_room(slots: int, resolved: Resolved, ledger: MemoryLedger) -> float:
    """Return the bytes that ``slots`` leave. On the host, allocation succeeds before the memory is in use.

    Raises ``ConfigError`` if they can never fit.
    """
    room = _host_bytes(resolved) if ledger.memory is None else ledger.memory.total()
    taken = slots * bytes_per_slot(resolved)
    if taken > room:
        has = "are free" if ledger.memory is None else "are all there is"
        raise ConfigError(
            f"out of memory: no room for {KV_POOL}: {slots} tokens take {gigabytes(taken)}, and {gigabytes(room)} "
            f"{has}; lower --max-total-tokens, or leave it out"
        )
    return room - taken - sum(ledger.taken.values())


def allocate(components: RankComponents, pool: SlotPool, ledger: MemoryLedger, ranks: Ranks | None = None) -> KVPool:
    """Allocate the model's KV pool, or this rank's part of it. Raises ``ConfigError`` if it does not fit."""
    resolved = components.resolved
    size = gigabytes(pool.rows * bytes_per_slot(resolved))
    with ledger.stage(KV_POOL, f"{pool.capacity} tokens take {size}; {advice(KV_POOL, resolved)}"):
        kv = _tensors(components, pool.rows, pool.capacity, ranks)
    keys = pool.rows * _key_bytes_per_slot(resolved)
    logger.info(
        "KV Cache is allocated. dtype: %s, #tokens: %d, K size: %s, V size: %s",
        resolved.kv_dtype,
        pool.capacity,
        gigabytes(keys),
        gigabytes(pool.rows * bytes_per_slot(resolved) - keys),
    )
    return kv


def allocate_requests(capacity: Capacity, ledger: MemoryLedger) -> None:
    """Let step extensions allocate their memory. Raises ``ConfigError`` if it does not fit."""
    for extension, request in capacity.requests:
        with ledger.stage(request.name, request.advice):
            extension.allocate(request)


def bytes_per_slot(resolved: Resolved) -> int:
    """Return the bytes of one token in the KV pool, or in a rank's part of it."""
    return resolved.shape.layers * resolved.shape.kv_numel_per_token * resolved.kv_dtype.itemsize


def _key_bytes_per_slot(resolved: Resolved) -> int:
    shape = resolved.shape
    return shape.layers * shape.kv_heads * shape.dim * resolved.kv_dtype.itemsize


def _tensors(components: RankComponents, rows: int, max_context: int, ranks: Ranks | None) -> KVPool:
    """Allocate a pool of ``rows`` on this rank, and let all others do the same."""
    if ranks is not None:
        ranks.pool(rows, max_context)
    return components.pool(rows)


def _profile(
    components: RankComponents,
    ledger: MemoryLedger,
    extensions: ExtensionPoints,
    memory: DeviceMemory,
    ranks: Ranks | None,
) -> None:
    """Measure the memory of the largest step and of the executors, and record it in the ledger."""
    resolved = components.resolved
    page, context = components.page_size, resolved.context_length
    steps = LargestSteps(
        tokens=max(resolved.chunk_size, context) if resolved.never_chunks_prompts else resolved.chunk_size,
        longest=context,
        sequences=max(resolved.max_running, extensions.start.max_draft_rows),
        task=resolved.tasks[0],
        vocabulary=resolved.vocab_size,
        page_size=page,
    ).with_extensions(extensions.start, extensions.requests)
    with ledger.guard(f"a KV pool of {steps.slots} tokens for memory profiling", advice(STEP, resolved)):
        kv = _tensors(components, SlotPool(steps.slots, page).rows, context, ranks)
    for extension in extensions.start.memory:
        extension.allocate(extension.memory_request(None))
    with ledger.stage(STEP, advice(STEP, resolved), peak=True):
        steps.run(Runner(components, kv, extensions.sampling, ranks=ranks))
    for sequence in steps.largest:
        extensions.requests.end_sequence(sequence)
    for phase in components.extensions.execution_phases.values():
        with ledger.guard(phase.memory_name, phase.memory_advice):
            taken = executor_bytes(partial(make_executor, phase, components, kv, context), components.model, memory)
        if taken is not None:
            ledger.enter(phase.memory_name, taken)
    for extension in extensions.start.memory:
        extension.allocate(None)


def _device_room(resolved: Resolved, ledger: MemoryLedger, memory: DeviceMemory) -> tuple[float, str]:
    """Return the bytes that the pool may take of an accelerator, and the fraction of its memory applied."""
    configured = resolved.config.cache.mem_fraction_static
    fraction = ACCELERATOR_FRACTION if configured is None else configured
    return memory.total() * fraction - sum(ledger.taken.values()), f"{fraction:.0%}"


def _host_room(resolved: Resolved) -> tuple[float, str]:
    """Return the bytes that the pool may take of the system's memory, and their fraction of the free memory."""
    configured = resolved.config.cache.mem_fraction_static
    fraction = CPU_FRACTION if configured is None else configured
    return _host_bytes(resolved) * fraction, f"{fraction:.0%}"


def _host_bytes(resolved: Resolved) -> float:
    """Return the free system memory per rank of each replica, in bytes."""
    parallel = resolved.config.parallel
    return available_bytes() / (parallel.tp_size * parallel.replicas)
