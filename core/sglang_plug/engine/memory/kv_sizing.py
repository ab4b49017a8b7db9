"""The size of the KV pool: as configured, or whatever memory weights, steps and graphs leave."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sglang_plug.config import ConfigError
from sglang_plug.contracts.model.batch import KVPool
from sglang_plug.contracts.model.recurrent_state import RESERVED, StatePool
from sglang_plug.contracts.text.media import MediaLimits
from sglang_plug.engine.cuda_graphs.decode_graphs import DecodeGraphs
from sglang_plug.engine.cuda_graphs.prefill_graphs import MakePrefillGraphs
from sglang_plug.engine.execution.rank_components import RankComponents
from sglang_plug.engine.execution.runner import Runner
from sglang_plug.engine.multimodal.image_inputs import largest_media
from sglang_plug.engine.recurrent_state.state_sizing import bytes_per_state, make_states, state_rows
from sglang_plug.engine.recurrent_state.state_steps import StateSteps
from sglang_plug.engine.sampling.sampler import Sampler
from sglang_plug.engine.startup.resolve import Resolved
from sglang_plug.engine.tensor_parallel.rank_messages import Ranks

from .budget import MemoryLedger, gigabytes
from .host_memory import available_bytes
from .kv_slots import SlotPool
from .profiling import LargestSteps, graph_bytes

logger = logging.getLogger(__name__)

CPU_FRACTION, ACCELERATOR_FRACTION = 0.5, 0.9
WEIGHTS, STEP, GRAPHS, KV_POOL, STATES = "weights", "largest step", "graphs", "KV pool", "recurrent states"
COUNTED = 2**20
"""Slots of a model without attention, unless its longest sequence needs more: they are counted, but take no memory."""
PREFILL_GRAPHS = "piecewise graphs"
"""Stages of the start that take memory."""

MakeGraphs = Callable[[KVPool, int, StatePool | None], DecodeGraphs]
"""Makes decode graphs for the pools and the longest context in tokens, without capturing any yet."""


def advice(stage: str, resolved: Resolved) -> str:
    """Return what a user can do if memory does not suffice for ``stage``."""
    batch = resolved.config.backends.cuda_graph_max_bs
    return {
        WEIGHTS: "serve a smaller model or one in fewer bits (--quantization), or end other processes on the device",
        STEP: f"lower --chunked-prefill-size (now {resolved.chunk_size}) or --max-running-requests (now "
        f"{resolved.max_running})",
        GRAPHS: f"lower --cuda-graph-max-bs (now {batch}), --mem-fraction-static or --max-total-tokens, or set "
        "--disable-cuda-graph",
        PREFILL_GRAPHS: "lower --piecewise-cuda-graph-max-tokens (now "
        f"{resolved.config.backends.piecewise_cuda_graph_max_tokens}), --mem-fraction-static or --max-total-tokens",
        KV_POOL: "lower --mem-fraction-static or --max-total-tokens",
        STATES: "lower --max-states or --max-running-requests",
    }[stage]


@dataclass(frozen=True, slots=True)
class Capacity:
    """The sizes of the pools."""

    slots: int
    """Number of slots of the KV pool."""
    states: int = 0
    """Rows of the pool of recurrent states; 0: there is none."""


def pool_capacity(
    parts: RankComponents,
    make_graphs: MakeGraphs | None,
    ledger: MemoryLedger,
    ranks: Ranks | None = None,
    make_prefill_graphs: MakePrefillGraphs | None = None,
    *,
    draft_rows: int = 0,
) -> Capacity:
    """Return the configured capacity, or else the largest that fits and can be used.

    Raises ``ConfigError`` if there is no room for the pools.
    """
    resolved = parts.resolved
    check_pool_options(resolved)
    cache, page = resolved.config.cache, resolved.config.cache.page_size
    useful = resolved.max_running * (resolved.context_length + page)
    if cache.max_total_tokens is not None:
        if resolved.causal:
            left = _check_room(cache.max_total_tokens, resolved, ledger)
            return Capacity(cache.max_total_tokens, state_rows(resolved, left))
        return Capacity(min(cache.max_total_tokens, useful))
    if not resolved.causal:
        return Capacity(useful)  # slots are only counted: an encoder keeps no keys and values
    if ledger.memory is None:
        room, fraction = _host_room(resolved)
    else:
        _rehearse(parts, make_graphs, ledger, ranks, make_prefill_graphs, draft_rows)
        room, fraction = _device_room(resolved, ledger)
    states = state_rows(resolved, room)
    room -= states * bytes_per_state(resolved)
    each = bytes_per_slot(resolved)
    slots = min(int(room // each) if each else max(COUNTED, resolved.context_length + page), useful)
    if slots < 2 * page:
        taken = f" (taken: {ledger.account()})" if ledger.taken else ""
        raise ConfigError(
            f"no memory for a KV pool: {gigabytes(max(room, 0))} are left of the {fraction} that --mem-fraction-static "
            f"allows{taken}, and a slot takes {bytes_per_slot(resolved)} bytes; raise --mem-fraction-static, set "
            f"--max-total-tokens, or serve a smaller model; or {advice(STEP, resolved)}"
        )
    return Capacity(slots, states)


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


def allocate(parts: RankComponents, pool: SlotPool, ledger: MemoryLedger, ranks: Ranks | None = None) -> KVPool:
    """Allocate the model's KV pool, or this rank's part of it. Raises ``ConfigError`` if it does not fit."""
    resolved = parts.resolved
    size = gigabytes(pool.rows * bytes_per_slot(resolved))
    with ledger.stage(KV_POOL, f"{pool.capacity} tokens take {size}; {advice(KV_POOL, resolved)}"):
        kv = _tensors(parts, pool.rows, ranks)
    logger.info("KV Cache is allocated. #tokens: %d, size: %s", pool.capacity, size)
    return kv


def allocate_states(resolved: Resolved, rows: int, ledger: MemoryLedger) -> StatePool:
    """Allocate the pool of recurrent states. Raises ``ConfigError`` if it does not fit."""
    size = gigabytes(rows * bytes_per_state(resolved))
    with ledger.stage(STATES, f"{rows} states take {size}; {advice(STATES, resolved)}"):
        states = make_states(resolved, rows)
    logger.info("Recurrent states are allocated. #states: %d, size: %s", rows - RESERVED, size)
    return states


def bytes_per_slot(resolved: Resolved) -> int:
    """Return the bytes of one token in the KV pool, or in a rank's part of it."""
    return resolved.shape.layers * resolved.shape.pooled * resolved.kv_dtype.itemsize


def _tensors(parts: RankComponents, rows: int, ranks: Ranks | None) -> KVPool:
    """Allocate a pool of ``rows`` on this rank, and let all others do the same."""
    if ranks is not None:
        ranks.pool(rows)
    return parts.pool(rows)


def _rehearse(
    parts: RankComponents,
    make_graphs: MakeGraphs | None,
    ledger: MemoryLedger,
    ranks: Ranks | None,
    make_prefill_graphs: MakePrefillGraphs | None,
    draft_rows: int,
) -> None:
    """Measure the memory of the largest step and of the graphs, and record it in the ledger."""
    resolved, model = parts.resolved, parts.model
    page, context = resolved.config.cache.page_size, resolved.context_length
    steps = LargestSteps(
        tokens=max(resolved.chunk_size, context) if resolved.whole else resolved.chunk_size,
        longest=context,
        sequences=max(resolved.max_running, draft_rows),
        task=resolved.tasks[0],
        vocabulary=resolved.vocab_size,
        page_size=page,
        media=largest_media(model, min(MediaLimits().tokens, context - 1)),
        states=bool(resolved.states),
    )
    with ledger.guard(f"a KV pool of {steps.slots} tokens for a trial", advice(STEP, resolved)):
        kv = _tensors(parts, SlotPool(steps.slots, page).rows, ranks)
    states = make_states(resolved, RESERVED + 1) if resolved.states else None
    runner = Runner(
        model,
        parts.backend,
        kv,
        device=resolved.device,
        page_size=page,
        sampler=Sampler(parts.kernels),
        ranks=ranks,
        states=None if states is None else StateSteps(states),
    )
    with ledger.stage(STEP, advice(STEP, resolved), peak=True):
        steps.run(runner)
    if make_graphs is not None and ledger.memory is not None:
        with ledger.guard(GRAPHS, advice(GRAPHS, resolved)):
            taken = graph_bytes(partial(make_graphs, kv, context, states), model, ledger.memory)
        ledger.enter(GRAPHS, taken)
    if make_prefill_graphs is not None and ledger.memory is not None:
        with ledger.guard(PREFILL_GRAPHS, advice(PREFILL_GRAPHS, resolved)):
            taken = graph_bytes(partial(make_prefill_graphs, kv), model, ledger.memory)
        ledger.enter(PREFILL_GRAPHS, taken)


def _device_room(resolved: Resolved, ledger: MemoryLedger) -> tuple[float, str]:
    """Return the bytes that the pool may take of an accelerator, and the fraction of its memory applied."""
    configured = resolved.config.cache.mem_fraction_static
    fraction = ACCELERATOR_FRACTION if configured is None else configured
    assert ledger.memory is not None
    return ledger.memory.total() * fraction - sum(ledger.taken.values()), f"{fraction:.0%}"


def _host_room(resolved: Resolved) -> tuple[float, str]:
    """Return the bytes that the pool may take of the system's memory, and their fraction of the free memory."""
    configured = resolved.config.cache.mem_fraction_static
    fraction = CPU_FRACTION if configured is None else configured
    return _host_bytes(resolved) * fraction, f"{fraction:.0%}"


def _host_bytes(resolved: Resolved) -> float:
    """Return the free system memory per rank, in bytes."""
    return available_bytes() / resolved.config.parallel.tp_size
