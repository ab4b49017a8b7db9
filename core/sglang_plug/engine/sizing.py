"""How many slots the KV pool has: what was asked for, or what weights, steps and graphs leave of the memory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from sglang_plug.batch import KVPool
from sglang_plug.config import ConfigError
from sglang_plug.media import MediaLimits

from .drafters import sampled_rows
from .graphs import DecodeGraphs
from .host_memory import available_bytes
from .memory import MemoryLedger, gigabytes
from .parts import Parts
from .ranks import Ranks
from .rehearsal import LargestSteps, graph_bytes
from .resolve import Resolved
from .runner import Runner
from .sampler import Sampler
from .sight import largest_media
from .slots import SlotPool

logger = logging.getLogger(__name__)

CPU_FRACTION, ACCELERATOR_FRACTION = 0.5, 0.9
WEIGHTS, STEP, GRAPHS, KV_POOL = "weights", "largest step", "graphs", "KV pool"
"""Stages of the start that take memory."""

MakeGraphs = Callable[[KVPool, int], DecodeGraphs]
"""Of a pool and the tokens of the longest context; nothing is captured yet."""


def advice(stage: str, resolved: Resolved) -> str:
    """What to do if memory does not suffice for ``stage``."""
    batch = resolved.config.backends.cuda_graph_max_bs
    return {
        WEIGHTS: "serve a smaller model or one in fewer bits (--quantization), or end other processes on the device",
        STEP: f"lower --chunked-prefill-size (now {resolved.chunk}) or --max-running-requests (now "
        f"{resolved.max_running})",
        GRAPHS: f"lower --cuda-graph-max-bs (now {batch}), --mem-fraction-static or --max-total-tokens, or set "
        "--disable-cuda-graph",
        KV_POOL: "lower --mem-fraction-static or --max-total-tokens",
    }[stage]


def pool_capacity(
    parts: Parts, make_graphs: MakeGraphs | None, ledger: MemoryLedger, ranks: Ranks | None = None
) -> int:
    """KV slots: what was asked for, or what fits and could be used at all.

    Raises ``ConfigError`` if there is no room for a pool.
    """
    resolved = parts.resolved
    cache, page = resolved.config.cache, resolved.config.cache.page_size
    if page < 1:
        raise ConfigError(f"--page-size must be at least 1, got {page}")
    useful = resolved.max_running * (resolved.context_length + page)
    if cache.max_total_tokens is not None:
        if cache.max_total_tokens < 2 * page:
            raise ConfigError(f"--max-total-tokens must be at least {2 * page}, got {cache.max_total_tokens}")
        if resolved.causal:
            _check_room(cache.max_total_tokens, resolved, ledger)
            return cache.max_total_tokens
        return min(cache.max_total_tokens, useful)
    if not resolved.causal:
        return useful  # slots are only counted: an encoder keeps no keys and values
    if ledger.memory is None:
        room, share = _host_room(resolved)
    else:
        _rehearse(parts, make_graphs, ledger, ranks)
        room, share = _device_room(resolved, ledger)
    slots = min(int(room // bytes_per_slot(resolved)), useful)
    if slots < 2 * page:
        taken = f" (taken: {ledger.account()})" if ledger.taken else ""
        raise ConfigError(
            f"no memory for a KV pool: {gigabytes(max(room, 0))} are left of the {share} that --mem-fraction-static "
            f"allows{taken}, and a slot takes {bytes_per_slot(resolved)} bytes; raise --mem-fraction-static, set "
            f"--max-total-tokens, or serve a smaller model; or {advice(STEP, resolved)}"
        )
    return slots


def _check_room(slots: int, resolved: Resolved, ledger: MemoryLedger) -> None:
    """Raises ``ConfigError`` if ``slots`` can never fit: on the host memory is given before it is there."""
    room = _host_bytes(resolved) if ledger.memory is None else ledger.memory.total()
    taken = slots * bytes_per_slot(resolved)
    if taken > room:
        has = "are free" if ledger.memory is None else "are all there is"
        raise ConfigError(
            f"out of memory: no room for {KV_POOL}: {slots} tokens take {gigabytes(taken)}, and {gigabytes(room)} "
            f"{has}; lower --max-total-tokens, or leave it out"
        )


def allocate(parts: Parts, pool: SlotPool, ledger: MemoryLedger, ranks: Ranks | None = None) -> KVPool:
    """The model's pool, or this rank's part of it. Raises ``ConfigError`` if they do not fit."""
    resolved = parts.resolved
    size = gigabytes(pool.rows * bytes_per_slot(resolved))
    with ledger.stage(KV_POOL, f"{pool.capacity} tokens take {size}; {advice(KV_POOL, resolved)}"):
        kv = _tensors(parts, pool.rows, ranks)
    logger.info("KV Cache is allocated. #tokens: %d, size: %s", pool.capacity, size)
    return kv


def bytes_per_slot(resolved: Resolved) -> int:
    """What the pool, or a rank's part of it, keeps of one token."""
    return resolved.shape.layers * resolved.shape.pooled * resolved.kv_dtype.itemsize


def _tensors(parts: Parts, rows: int, ranks: Ranks | None) -> KVPool:
    """Of this rank, and of all others."""
    if ranks is not None:
        ranks.pool(rows)
    return parts.pool(rows)


def _rehearse(parts: Parts, make_graphs: MakeGraphs | None, ledger: MemoryLedger, ranks: Ranks | None) -> None:
    """Enter into the ledger what the largest step and the graphs take."""
    resolved, model = parts.resolved, parts.model
    page, context = resolved.config.cache.page_size, resolved.context_length
    steps = LargestSteps(
        tokens=max(resolved.chunk, context) if resolved.whole else resolved.chunk,
        longest=context,
        sequences=sampled_rows(resolved),
        task=resolved.tasks[0],
        vocabulary=resolved.vocab_size,
        page_size=page,
        media=largest_media(model, min(MediaLimits().tokens, context - 1)),
    )
    with ledger.guard(f"a KV pool of {steps.slots} tokens for a trial", advice(STEP, resolved)):
        kv = _tensors(parts, SlotPool(steps.slots, page).rows, ranks)
    sampler = Sampler(parts.kernels)
    runner = Runner(model, parts.backend, kv, device=resolved.device, page_size=page, sampler=sampler, ranks=ranks)
    with ledger.stage(STEP, advice(STEP, resolved), peak=True):
        steps.run(runner)
    if make_graphs is not None and ledger.memory is not None:
        with ledger.guard(GRAPHS, advice(GRAPHS, resolved)):
            taken = graph_bytes(partial(make_graphs, kv, context), model, ledger.memory)
        ledger.enter(GRAPHS, taken)


def _device_room(resolved: Resolved, ledger: MemoryLedger) -> tuple[float, str]:
    """Bytes the pool may take of an accelerator, and the share of its memory that this follows from."""
    wanted = resolved.config.cache.mem_fraction_static
    fraction = ACCELERATOR_FRACTION if wanted is None else wanted
    assert ledger.memory is not None
    return ledger.memory.total() * fraction - sum(ledger.taken.values()), f"{fraction:.0%}"


def _host_room(resolved: Resolved) -> tuple[float, str]:
    """Bytes the pool may take of the system's memory, and the share of what is free that this is."""
    wanted = resolved.config.cache.mem_fraction_static
    fraction = CPU_FRACTION if wanted is None else wanted
    return _host_bytes(resolved) * fraction, f"{fraction:.0%}"


def _host_bytes(resolved: Resolved) -> float:
    """Of the system's memory, what is free for each of the ranks that share it."""
    return available_bytes() / resolved.config.parallel.tp_size
