"""Assembles an engine from resolved choices: model, KV pool, cache, scheduler, loop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from sglang_plug.config import EngineConfig
from sglang_plug.contracts.extension.execution import StepExecutor
from sglang_plug.contracts.model.batch import KVPool
from sglang_plug.contracts.serving.executor import SINGLE_RANK
from sglang_plug.engine.execution.executors import StepExecutors, make_executor
from sglang_plug.engine.execution.pipeline import Pipeline
from sglang_plug.engine.execution.rank_components import RankComponents, build_rank_components
from sglang_plug.engine.execution.runner import Runner
from sglang_plug.engine.execution.weight_update import WeightUpdater
from sglang_plug.engine.extensions.build import BuiltExtensions, build_extensions
from sglang_plug.engine.extensions.points import ExtensionPoints
from sglang_plug.engine.extensions.step_points import ForwardPoints
from sglang_plug.engine.loading.kv_dtype import kv_dtype_name
from sglang_plug.engine.loading.resolve import Resolved, resolve
from sglang_plug.engine.loop import EngineLoop, Inbox
from sglang_plug.engine.memory.budget import GIB, DeviceMemory, MemoryLedger, device_memory, tensor_bytes
from sglang_plug.engine.memory.kv_slots import KVAllocator, SlotPool
from sglang_plug.engine.memory.prefix_pool import EnginePrefixPool
from sglang_plug.engine.messages.api_messages import FromEngine
from sglang_plug.engine.messages.rank_messages import Ranks
from sglang_plug.engine.sampling.processors import LogitsProcessors
from sglang_plug.engine.scheduling.admission_rules import GrowthReserve
from sglang_plug.engine.scheduling.preemption import Preemption
from sglang_plug.engine.scheduling.scheduler import Scheduler
from sglang_plug.engine.tensor_parallel.group import start_ranks
from sglang_plug.engine.watchdog import Heartbeat
from sglang_plug.plugins.attribution import attributed_by_traceback, described
from sglang_plug.plugins.registry import Plugins
from sglang_plug.system.gc_control import gc_paused

from .kv_sizing import WEIGHTS, advice, allocate, allocate_requests, bytes_per_slot, pool_capacity
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
    """Build an engine that is ready to run. Afterwards no plugin hook is called.

    ``memory_of`` returns the memory of a device, if it can be accounted for; ``lost`` is called, from another thread,
    when a rank has ended. Raises ``ConfigError`` if the configuration cannot be served.
    """
    plugins.check_settings()
    plugins.configure(config)
    with gc_paused():  # components are imported
        resolved = resolve(config, plugins)
    if config.random_seed is not None:
        torch.manual_seed(config.random_seed)
    with ExitStack() as unless_built:
        ranks = start_ranks(resolved, plugins, lost)
        if ranks is not None:
            unless_built.callback(ranks.close)
        ledger = MemoryLedger(memory_of(resolved.device))
        built = _extensions(resolved, plugins, ranks)
        for close in built.points.service.close:
            unless_built.callback(close)
        with attributed_by_traceback(built.components, "while the engine was built"):
            engine = _build(built, plugins, inbox, send, heartbeat, ledger, ranks)
        unless_built.pop_all()
    return engine


def _build(
    built: BuiltExtensions,
    plugins: Plugins,
    inbox: Inbox,
    send: Callable[[FromEngine], None],
    heartbeat: Heartbeat,
    ledger: MemoryLedger,
    ranks: Ranks | None,
) -> EngineLoop:
    extensions, resolved = built.points, built.resolved
    scheduling = build_scheduling_components(resolved)
    processors = _logits_processors(built, plugins)
    config = resolved.config
    with ledger.stage(WEIGHTS, advice(WEIGHTS, resolved)):
        components = _loaded_components(resolved, extensions.forward, ranks)
    capacity = pool_capacity(components, ledger, extensions, ranks)
    pool = SlotPool(capacity.slots, config.cache.page_size)
    kv = allocate(components, pool, ledger, ranks) if resolved.causal else None
    allocate_requests(capacity, ledger)
    executors = StepExecutors() if kv is None else _executors(components, kv, pool.capacity, ledger)
    runner = Runner(components, kv, extensions.sampling, ranks=ranks, executors=executors)
    scheduler = _scheduler(resolved, scheduling, pool, extensions)
    describe = partial(described, components=(*resolved.components, *built.components))
    pipeline = Pipeline(
        scheduler,
        runner,
        overlap=runner.asynchronous and not config.schedule.disable_overlap_schedule,
        out_of_memory_message=ledger.of_step,
        describe=describe,
        shared=ranks is not None,
        step_budget=extensions.planning.step_budget,
    )
    engine = EngineLoop(
        pipeline,
        inbox,
        send,
        info=_info(resolved, plugins, scheduler, ledger, components),
        max_queued=config.schedule.max_queued_requests,
        heartbeat=heartbeat,
        update_weights=WeightUpdater(components, kv, ranks),
        describe=describe,
        ranks=ranks,
        extensions=extensions,
        processors=processors,
    )
    if kv is not None:
        return_memory = (lambda runs: None) if ranks is None else ranks.return_memory
        prefixes = EnginePrefixPool(scheduler.allocator, kv, extensions.start.stored_states, resolved, return_memory)
        for use_prefixes in extensions.start.use_prefixes:
            use_prefixes(prefixes)
        extensions.start.share_tensor_store()
    for start in extensions.start.start:
        start()
    return engine


def _extensions(resolved: Resolved, plugins: Plugins, ranks: Ranks | None) -> BuiltExtensions:
    """Build the step extensions of rank 0."""
    if ranks is None:
        return build_extensions(resolved, plugins)
    return build_extensions(resolved, plugins, collectives=ranks.collectives, command=ranks.extension_command)


def _logits_processors(built: BuiltExtensions, plugins: Plugins) -> LogitsProcessors:
    """Build the logits processors of every plugin, if the model generates."""
    resolved, choices = built.resolved, built.choices
    if "generate" not in resolved.tasks:
        return LogitsProcessors()
    return LogitsProcessors.build(
        plugins,
        built.request_fields(plugins),
        resolved.vocab_size,
        resolved.device,
        lambda: choices.vocabulary() if choices.has_tokenizer else None,
    )


def _loaded_components(resolved: Resolved, extensions: ForwardPoints, ranks: Ranks | None) -> RankComponents:
    """Build this rank's components, load the weights of all ranks, and install the step extensions."""
    components = build_rank_components(resolved, extensions, SINGLE_RANK if ranks is None else ranks.collectives)
    components.all_ranks_succeeded(True)  # wait until all have loaded their weights
    components.use(components.model)
    return components


def _scheduler(
    resolved: Resolved,
    scheduling: SchedulingComponents,
    pool: SlotPool,
    extensions: ExtensionPoints,
) -> Scheduler:
    limits = [limit for extension in extensions.start.memory if (limit := extension.max_running()) is not None]
    planning = extensions.planning
    return Scheduler(
        KVAllocator(pool, scheduling.cache, extensions.cache, scheduling.cache_description),
        scheduling.policy,
        chunk_size=resolved.chunk_size,
        max_running=min([resolved.max_running, *limits]),
        never_chunks_prompts=resolved.never_chunks_prompts,
        requests=extensions.requests,
        planning=planning,
        preemption=Preemption(
            policy=scheduling.preemptive,
            name=scheduling.policy_name,
            extension=planning.preemption,
            extension_name=planning.names.of(planning.preemption),
        ),
        reserve=GrowthReserve(),
        accounting=scheduling.accounting,
    )


def _executors(components: RankComponents, kv: KVPool, max_context: int, ledger: MemoryLedger) -> StepExecutors:
    """Make the executors of the step extensions for ``kv``, and let them capture the model."""
    executors: dict[str, StepExecutor] = {}
    for name, phase in components.extensions.execution_phases.items():
        with ledger.stage(phase.memory_name, phase.memory_advice) as stage:
            executor = make_executor(phase, components, kv, max_context)
            if executor is None:
                stage.leave_out()
                continue
            executor.capture(components.model, must_fit=True)
            executors[name] = executor
    return StepExecutors.of(executors)


def _info(
    resolved: Resolved,
    plugins: Plugins,
    scheduler: Scheduler,
    ledger: MemoryLedger,
    components: RankComponents,
) -> dict[str, Any]:
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
        "fingerprint": [list(part) for part in plugins.fingerprint],
        "random_seed": config.random_seed,
        "memory": dict(ledger.taken),
        "memory_usage": _memory_usage(components, scheduler.pool, ledger),
    }


def _memory_usage(components: RankComponents, pool: SlotPool, ledger: MemoryLedger) -> dict[str, Any]:
    """Return the memory of weights, KV pool and graphs in GiB, and the tokens of the pool, for ``/server_info``."""
    resolved = components.resolved
    kv_bytes = pool.rows * bytes_per_slot(resolved) if resolved.causal else 0
    executors = [phase.memory_name for phase in components.extensions.execution_phases.values()]
    sizes = {
        "weight": ledger.taken[WEIGHTS] if WEIGHTS in ledger.taken else tensor_bytes(components.model),
        "kvcache": kv_bytes,
        "graph": sum(ledger.taken.get(name, 0) for name in executors),
    }
    return {**{name: round(size / GIB, 4) for name, size in sizes.items()}, "token_capacity": pool.capacity}


def _quantization_name(resolved: Resolved) -> str | None:
    chosen = resolved.choices.get("quantization")
    return None if chosen is None else chosen.component.spec.name


def _labels(config: Any) -> list[str]:
    """Return the names of a classifier's classes in order; empty if the checkpoint has none."""
    named = getattr(config, "id2label", None) or {}
    return [str(named[index]) for index in sorted(named)]
