"""Assembles an engine from resolved choices: model, KV pool, cache, scheduler, loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from sglang_plug.attention import AttentionBackend, GraphCapable
from sglang_plug.attribution import described, make
from sglang_plug.batch import KVPool
from sglang_plug.cache import EvictionPolicy, PrefixCache
from sglang_plug.collecting import collecting_later
from sglang_plug.config import EngineConfig
from sglang_plug.executor import ALONE, Collectives
from sglang_plug.plugins import Plugins
from sglang_plug.policy import SchedulePolicy
from sglang_plug.recurrent import StatePool

from .adapter_formats import build_adapters
from .adapters import Adapters
from .checked_order import CheckedOrder
from .compiler import BackendCompiler, GrammarSources
from .constraints import Constraints
from .drafters import build_speculation
from .few_adapters import FewAdapters
from .grammar_backends import forms
from .grammars import Grammars
from .graphs import CudaRecorder, DecodeGraphs
from .kv_dtype import kv_dtype_name
from .loop import EngineLoop, Inbox
from .memory import DeviceMemory, MemoryLedger, device_memory
from .messages import FromEngine
from .parts import Parts, build_parts
from .prefill_graphs import prefill_graphs_of
from .ranks import Ranks
from .recurrence import StateSteps
from .resolve import Resolved, resolve
from .runner import Runner
from .sampler import Sampler
from .scheduler import Scheduler
from .sizing import GRAPHS, PREFILL_GRAPHS, WEIGHTS, MakeGraphs, advice, allocate, allocate_states, pool_capacity
from .slots import SlotPool
from .states import StateRows
from .team import start_ranks
from .update import WeightUpdater
from .watchdog import Heartbeat

logger = logging.getLogger(__name__)


def build_engine(
    config: EngineConfig,
    plugins: Plugins,
    inbox: Inbox,
    send: Callable[[FromEngine], None],
    heartbeat: Heartbeat,
    *,
    memory_of: Callable[[torch.device], DeviceMemory | None] = device_memory,
    lost: Callable[[str], None] = logger.critical,
) -> EngineLoop:
    """An engine, ready to run. After this no plugin hook is called and no pluggy object is held.

    ``memory_of`` gives the memory of a device, if it can be accounted for; ``lost`` is told, from another thread, of a
    rank that is gone. Raises ``ConfigError`` if the configuration cannot be served.
    """
    plugins.configure(config)
    with collecting_later():  # components are imported
        resolved = resolve(config, plugins)
    if config.random_seed is not None:
        torch.manual_seed(config.random_seed)
    with ExitStack() as unless_built:
        ranks = start_ranks(resolved, plugins, lost)
        if ranks is not None:
            unless_built.callback(ranks.close)
        ledger = MemoryLedger(memory_of(resolved.device))
        engine = _build(resolved, plugins, inbox, send, heartbeat, ledger, ranks)
        unless_built.pop_all()
    return engine


def _build(
    resolved: Resolved,
    plugins: Plugins,
    inbox: Inbox,
    send: Callable[[FromEngine], None],
    heartbeat: Heartbeat,
    ledger: MemoryLedger,
    ranks: Ranks | None,
) -> EngineLoop:
    config, adapters = resolved.config, build_adapters(resolved, plugins)
    with ledger.stage(WEIGHTS, advice(WEIGHTS, resolved)):
        parts = build_parts(resolved, ALONE if ranks is None else ranks.collectives, adapters is not None)
        if adapters is not None:
            if resolved.device.type == "cuda" and not config.backends.disable_cuda_graph and ranks is None:
                adapters.capture_by(parts.kernels.add_low_rank)
            adapters.install(parts.model)
        if ranks is not None:
            ranks.agreed(True, parts.device)  # all are there, their weights loaded
        if adapters is not None:
            adapters.ranks = ranks
            adapters.load_first(config.adapters.paths)
    make_graphs = _make_graphs(resolved, parts.backend, adapters, ranks, parts.collectives)
    make_prefill_graphs = prefill_graphs_of(resolved, parts.backend)
    capacity = pool_capacity(parts, make_graphs, ledger, ranks, make_prefill_graphs)
    pool = SlotPool(capacity.slots, config.cache.page_size)
    kv = allocate(parts, pool, ledger, ranks) if resolved.causal else None
    states = allocate_states(resolved, capacity.states, ledger) if capacity.states else None
    graphs = None
    if make_graphs is not None and kv is not None:
        with ledger.stage(GRAPHS, advice(GRAPHS, resolved)):
            graphs = make_graphs(kv, pool.capacity, states)
            graphs.capture(parts.model, must_fit=True)
    runner = _runner(parts, kv, graphs, ranks)
    if make_prefill_graphs is not None and kv is not None:
        with ledger.stage(PREFILL_GRAPHS, advice(PREFILL_GRAPHS, resolved)):
            runner.prefill_graphs = make_prefill_graphs(kv)
            runner.prefill_graphs.capture(parts.model, must_fit=True)
    runner.adapters = adapters
    runner.states = None if states is None else StateSteps(states)
    updater = WeightUpdater(parts, kv, ranks)
    scheduler = _scheduler(resolved, pool, states)
    if adapters is not None:
        scheduler.policy = FewAdapters(scheduler.policy, scheduler.running, config.adapters.most_in_step)
    return EngineLoop(
        scheduler,
        runner,
        inbox,
        send,
        info={**_info(resolved, plugins, scheduler, ledger), "adapters": None if adapters is None else adapters.paths},
        max_queued=config.schedule.max_queued_requests,
        heartbeat=heartbeat,
        update_weights=updater if adapters is None else lambda *given: adapters.install(updater(*given)),
        model_controls=lambda: runner.model.controls(),
        constraints=_constraints(resolved),
        shortage=ledger.of_step,
        overlap=runner.asynchronous and not config.schedule.disable_overlap_schedule,
        describe=partial(described, components=resolved.components),
        adapters=adapters,
        ranks=ranks,
    )


def _runner(parts: Parts, kv: KVPool | None, graphs: DecodeGraphs | None, ranks: Ranks | None) -> Runner:
    resolved, config = parts.resolved, parts.resolved.config
    return Runner(
        parts.model,
        parts.backend,
        kv,
        device=resolved.device,
        page_size=config.cache.page_size,
        grammars=Grammars(resolved.vocab_size, jump=not config.backends.disable_jump_forward),
        graphs=graphs,
        sampler=Sampler(parts.kernels),
        ranks=ranks,
    )


def _scheduler(resolved: Resolved, pool: SlotPool, states: StatePool | None) -> Scheduler:
    page_size = resolved.config.cache.page_size
    eviction = resolved.make("eviction", EvictionPolicy)
    component = resolved.choices["prefix-cache"].component
    rows = None if states is None else StateRows(states.rows, page_size)
    cache: PrefixCache = make(component, page_size, eviction, time.monotonic, base=PrefixCache)
    return Scheduler(
        pool,
        cache,
        CheckedOrder(resolved.make("schedule", SchedulePolicy), str(resolved.choices["schedule"].component)),
        chunk=resolved.chunk,
        max_running=resolved.max_running if rows is None else min(resolved.max_running, rows.capacity),
        whole=resolved.whole,
        speculation=build_speculation(resolved),
        states=rows,
    )


def _constraints(resolved: Resolved) -> Constraints:
    if "grammar" not in resolved.choices:
        return Constraints(resolved.no_grammars or "the model does not generate")
    return Constraints(BackendCompiler(GrammarSources(resolved)), forms=forms(resolved.grammars))


def _make_graphs(
    resolved: Resolved,
    backend: AttentionBackend,
    adapters: Adapters | None = None,
    ranks: Ranks | None = None,
    collectives: Collectives = ALONE,
) -> MakeGraphs | None:
    """What makes graphs for decoding, where device, backend, task and configuration allow them."""
    options = resolved.config.backends
    if not resolved.causal or "generate" not in resolved.tasks:
        return None
    recorder = backend.recorder() if isinstance(backend, GraphCapable) else None
    if resolved.device.type != "cuda" and recorder is None:
        return None
    name = CudaRecorder.name if recorder is None else recorder.name
    if options.disable_cuda_graph or not isinstance(backend, GraphCapable):
        component = resolved.choices["attention"].component
        why = "--disable-cuda-graph" if options.disable_cuda_graph else f"{component} does not offer them"
        logger.info("Decoding runs without %ss: %s", name, why)
        return None

    def make(kv: KVPool, capacity: int, states: StatePool | None) -> DecodeGraphs:
        return DecodeGraphs(
            backend,
            kv,
            recorder or CudaRecorder(resolved.device),
            device=resolved.device,
            page_size=resolved.config.cache.page_size,
            most=min(resolved.max_running, options.cuda_graph_max_bs),
            width=min(resolved.context_length, capacity),
            ranks=ranks,
            collectives=collectives,
            states=states,
            adapters=adapters,
        )

    return make


def _info(resolved: Resolved, plugins: Plugins, scheduler: Scheduler, ledger: MemoryLedger) -> dict[str, Any]:
    """What is known of the engine; plain data, it crosses the process line."""
    config, checkpoint = resolved.config, resolved.checkpoint
    return {
        "model_path": checkpoint.source,
        "checkpoint_path": str(checkpoint.path),
        "architecture": checkpoint.architecture,
        "model_type": getattr(checkpoint.config, "model_type", "") or "",
        "tasks": list(resolved.tasks),
        "inputs": sorted(resolved.inputs),
        "context_length": resolved.context_length,
        "vocab_size": resolved.vocab_size,
        "dtype": str(resolved.dtype).removeprefix("torch."),
        "kv_cache_dtype": kv_dtype_name(resolved.kv_dtype),
        "quantization": _quantization_name(resolved),
        "device": str(resolved.device),
        "max_total_tokens": scheduler.pool.capacity,
        "max_running_requests": scheduler.max_running,
        "max_queued_requests": config.schedule.max_queued_requests,
        "chunked_prefill_size": resolved.chunk,
        "page_size": config.cache.page_size,
        "tp_size": config.parallel.tp_size,
        "components": {kind: choice.describe() for kind, choice in resolved.choices.items()},
        "eos_token_ids": list(resolved.eos_token_ids),
        "generation": dict(checkpoint.generation),
        "normalized": resolved.pooling.normalize,
        "labels": _labels(checkpoint.config),
        "labels_exclusive": getattr(checkpoint.config, "problem_type", None) != "multi_label_classification",
        "fingerprint": [list(one) for one in plugins.fingerprint],
        "random_seed": config.random_seed,
        "memory": dict(ledger.taken),
    }


def _quantization_name(resolved: Resolved) -> str | None:
    chosen = resolved.choices.get("quantization")
    return None if chosen is None else chosen.component.spec.name


def _labels(config: Any) -> list[str]:
    """Names of a classifier's classes, in order, as far as the checkpoint gives them."""
    named = getattr(config, "id2label", None) or {}
    return [str(named[index]) for index in sorted(named)]
