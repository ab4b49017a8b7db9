"""Assembles an engine from resolved choices: model, KV pool, cache, scheduler, loop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from sglang_plug.config import EngineConfig
from sglang_plug.contracts.model.attention import AttentionBackend, GraphCapable
from sglang_plug.contracts.model.batch import KVPool
from sglang_plug.contracts.model.recurrent_state import StatePool
from sglang_plug.contracts.serving.executor import SINGLE_RANK, Collectives
from sglang_plug.engine.cuda_graphs.decode_graphs import CudaRecorder, DecodeGraphs
from sglang_plug.engine.cuda_graphs.prefill_graphs import PrefillGraphs, prefill_graphs_of
from sglang_plug.engine.execution.rank_components import RankComponents, build_rank_components
from sglang_plug.engine.execution.runner import Runner
from sglang_plug.engine.execution.weight_update import WeightUpdater
from sglang_plug.engine.extensions.build import build_extensions
from sglang_plug.engine.extensions.points import ExtensionPoints
from sglang_plug.engine.loop import EngineLoop, Inbox
from sglang_plug.engine.lora.adapter_formats import build_adapters
from sglang_plug.engine.lora.adapter_limit import AdapterLimit
from sglang_plug.engine.lora.adapters import Adapters
from sglang_plug.engine.memory.budget import DeviceMemory, MemoryLedger, device_memory
from sglang_plug.engine.memory.host_memory import host_memory
from sglang_plug.engine.memory.kv_dtype import kv_dtype_name
from sglang_plug.engine.memory.kv_sizing import (
    GRAPHS,
    PREFILL_GRAPHS,
    WEIGHTS,
    MakeGraphs,
    advice,
    allocate,
    allocate_states,
    pool_capacity,
)
from sglang_plug.engine.memory.kv_slots import SlotPool
from sglang_plug.engine.memory.memory_relief import MemoryRelief
from sglang_plug.engine.processes.messages import FromEngine
from sglang_plug.engine.processes.watchdog import Heartbeat
from sglang_plug.engine.recurrent_state.state_rows import StateRows
from sglang_plug.engine.recurrent_state.state_steps import StateSteps
from sglang_plug.engine.sampling.processors import LogitsProcessors
from sglang_plug.engine.sampling.sampler import Sampler
from sglang_plug.engine.scheduling.scheduler import Scheduler
from sglang_plug.engine.scheduling.sharing import CallerLimit
from sglang_plug.engine.structured_outputs.batch_grammars import Grammars
from sglang_plug.engine.structured_outputs.compiler import BackendCompiler, GrammarSources
from sglang_plug.engine.structured_outputs.constraints import Constraints
from sglang_plug.engine.structured_outputs.grammar_backends import forms
from sglang_plug.engine.tensor_parallel.group import start_ranks
from sglang_plug.engine.tensor_parallel.rank_messages import Ranks
from sglang_plug.plugins.attribution import described
from sglang_plug.plugins.registry import Plugins
from sglang_plug.system.gc_control import collecting_later

from .resolve import Resolved, resolve
from .scheduling_components import SchedulingComponents, build_scheduling_components

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
    """Build an engine that is ready to run. Afterwards no plugin hook is called and no pluggy object is held.

    ``memory_of`` returns the memory of a device, if it can be accounted for; ``lost`` is called, from another thread,
    when a rank is gone. Raises ``ConfigError`` if the configuration cannot be served.
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
    config, adapters = resolved.config, build_adapters(resolved, plugins, ranks)
    scheduling, processors = build_scheduling_components(resolved), _logits_processors(resolved, plugins)
    resolved = (built := build_extensions(resolved, plugins)).resolved
    extensions = _with_limits(built.points, config, adapters)
    with ledger.stage(WEIGHTS, advice(WEIGHTS, resolved)):
        parts = _loaded_parts(resolved, adapters, ranks)
    make_graphs = _make_graphs(resolved, parts.backend, adapters, ranks, parts.collectives)
    make_prefill_graphs = prefill_graphs_of(resolved, parts.backend)
    capacity = pool_capacity(
        parts, make_graphs, ledger, ranks, make_prefill_graphs, draft_rows=extensions.most_draft_rows
    )
    pool = SlotPool(capacity.slots, config.cache.page_size)
    kv = allocate(parts, pool, ledger, ranks) if resolved.causal else None
    states = allocate_states(resolved, capacity.states, ledger) if capacity.states else None
    graphs = None
    if make_graphs is not None and kv is not None:
        with ledger.stage(GRAPHS, advice(GRAPHS, resolved)):
            graphs = make_graphs(kv, pool.capacity, states)
            graphs.capture(parts.model, must_fit=True)
    prefill_graphs = None
    if make_prefill_graphs is not None and kv is not None:
        with ledger.stage(PREFILL_GRAPHS, advice(PREFILL_GRAPHS, resolved)):
            prefill_graphs = make_prefill_graphs(kv)
            prefill_graphs.capture(parts.model, must_fit=True)
    runner = _runner(parts, kv, graphs, prefill_graphs, ranks, adapters, states)
    updater = WeightUpdater(parts, kv, ranks)
    scheduler = _scheduler(resolved, scheduling, pool, states, extensions)
    return EngineLoop(
        scheduler,
        runner,
        inbox,
        send,
        info={**_info(resolved, plugins, scheduler, ledger), "adapters": None if adapters is None else adapters.paths},
        max_queued=config.schedule.max_queued_requests,
        max_queued_per_caller=config.schedule.max_queued_per_caller,
        heartbeat=heartbeat,
        update_weights=updater if adapters is None else lambda *given: adapters.install(updater(*given)),
        model_controls=lambda: runner.model.controls(),
        constraints=_constraints(resolved),
        shortage=ledger.of_step,
        overlap=runner.asynchronous and not config.schedule.disable_overlap_schedule,
        describe=partial(described, components=resolved.components),
        adapters=adapters,
        ranks=ranks,
        relief=_relief(scheduler, kv, ranks),
        extensions=extensions,
        processors=processors,
    )


def _with_limits(extensions: ExtensionPoints, config: EngineConfig, adapters: Adapters | None) -> ExtensionPoints:
    """Return ``extensions`` with the limits of what is admitted: of one caller, and of different adapters."""
    order = extensions.order
    if config.schedule.max_running_per_caller is not None:
        order = (CallerLimit(config.schedule.max_running_per_caller).order, *order)
    if adapters is not None:
        order = (*order, AdapterLimit(config.adapters.most_in_step).order)
    return replace(extensions, order=order)


def _logits_processors(resolved: Resolved, plugins: Plugins) -> LogitsProcessors:
    """Build the logits processors of every plugin, if the model generates."""
    if "generate" not in resolved.tasks:
        return LogitsProcessors()
    return LogitsProcessors.build(plugins, resolved.vocab_size, resolved.device)


def _relief(scheduler: Scheduler, kv: KVPool | None, ranks: Ranks | None) -> MemoryRelief | None:
    """Build the memory relief of a pool in the host's memory; ``None`` for other pools."""
    if kv is None or not kv.k or kv.k[0].device.type != "cpu":
        return None
    give_back = (lambda runs: None) if ranks is None else ranks.give_back
    return MemoryRelief(scheduler.allocator, kv, host_memory, give_back)


def _loaded_parts(resolved: Resolved, adapters: Adapters | None, ranks: Ranks | None) -> RankComponents:
    """Build this rank's components and load the weights of all ranks and the configured adapters."""
    config = resolved.config
    collectives = SINGLE_RANK if ranks is None else ranks.collectives
    if adapters is None:
        parts = build_rank_components(resolved, collectives)
    else:
        check_first = partial(adapters.check_first, paths=config.adapters.paths)
        parts = build_rank_components(resolved, collectives, adapters=True, inspect=check_first)
    if adapters is not None:
        add_low_rank = None
        if resolved.device.type == "cuda" and not config.backends.disable_cuda_graph and ranks is None:
            add_low_rank = parts.kernels.add_low_rank
        adapters.install(parts.model, add_low_rank)
    if ranks is not None:
        ranks.agreed(True, parts.device)  # wait until all ranks have loaded their weights
    if adapters is not None:
        adapters.load_first(config.adapters.paths)
    return parts


def _runner(
    parts: RankComponents,
    kv: KVPool | None,
    graphs: DecodeGraphs | None,
    prefill_graphs: PrefillGraphs | None,
    ranks: Ranks | None,
    adapters: Adapters | None,
    states: StatePool | None,
) -> Runner:
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
        adapters=adapters,
        states=None if states is None else StateSteps(states),
        prefill_graphs=prefill_graphs,
    )


def _scheduler(
    resolved: Resolved,
    scheduling: SchedulingComponents,
    pool: SlotPool,
    states: StatePool | None,
    extensions: ExtensionPoints,
) -> Scheduler:
    rows = None if states is None else StateRows(states.rows, resolved.config.cache.page_size)
    return Scheduler(
        pool,
        scheduling.cache,
        scheduling.policy,
        chunk_size=resolved.chunk_size,
        max_running=resolved.max_running if rows is None else min(resolved.max_running, rows.capacity),
        whole=resolved.whole,
        extensions=extensions,
        states=rows,
        owners=scheduling.owners,
        turns=scheduling.turns,
        sharing=scheduling.sharing,
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
    collectives: Collectives = SINGLE_RANK,
) -> MakeGraphs | None:
    """Return a factory of decode graphs; ``None`` if device, backend, task or configuration rule them out."""
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
    """Collect the facts about the engine, as plain data that can be sent to another process."""
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
        "chunked_prefill_size": resolved.chunk_size,
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
    """Return the names of a classifier's classes in order; empty if the checkpoint has none."""
    named = getattr(config, "id2label", None) or {}
    return [str(named[index]) for index in sorted(named)]
