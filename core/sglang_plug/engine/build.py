"""Assembles an engine from resolved choices: model, KV pool, cache, scheduler, loop."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

import torch

from sglang_plug.attention import AttentionBackend, GraphCapable
from sglang_plug.batch import KVPool
from sglang_plug.cache import PrefixCache
from sglang_plug.config import ConfigError, EngineConfig
from sglang_plug.kernels import Kernels
from sglang_plug.plugins import Plugins
from sglang_plug.quantization import Quantization, QuantizationRequest, stored_quantization

from .compiler import BackendCompiler
from .constraints import Constraints
from .grammar_backends import forms
from .grammars import Grammars
from .graphs import CudaRecorder, DecodeGraphs
from .load import load_model
from .loop import EngineLoop, Inbox
from .messages import FromEngine
from .resolve import Resolved, resolve
from .runner import Runner
from .scheduler import Scheduler
from .slots import SlotPool
from .update import WeightUpdater
from .watchdog import Heartbeat

logger = logging.getLogger(__name__)

GIB = 1 << 30
CPU_FRACTION, ACCELERATOR_FRACTION = 0.5, 0.88


def build_engine(
    config: EngineConfig, plugins: Plugins, inbox: Inbox, send: Callable[[FromEngine], None], heartbeat: Heartbeat
) -> EngineLoop:
    """An engine, ready to run. After this no plugin hook is called and no pluggy object is held.

    Raises ``ConfigError`` if the configuration cannot be served.
    """
    plugins.configure(config)
    resolved = resolve(config, plugins)
    if config.random_seed is not None:
        torch.manual_seed(config.random_seed)
    backend = _attention(resolved)
    kernels = _kernels(resolved)
    quantization = _quantization(resolved, kernels)
    model = load_model(resolved, backend, kernels, quantization)
    pool = SlotPool(_capacity(resolved), config.cache.page_size)
    kv = _kv_pool(resolved, pool) if resolved.causal else None
    cache = resolved.load("prefix-cache", PrefixCache)(
        config.cache.page_size, resolved.make("eviction"), time.monotonic
    )
    scheduler = Scheduler(
        pool,
        cache,
        resolved.make("schedule"),
        chunk=resolved.chunk,
        max_running=resolved.max_running,
        whole=resolved.whole,
    )
    graphs = _graphs(resolved, backend, kv, pool)
    if graphs is not None:
        graphs.capture(model)
    runner = Runner(
        model,
        backend,
        kv,
        device=resolved.device,
        page_size=config.cache.page_size,
        grammars=Grammars(resolved.vocab_size, jump=not config.backends.disable_jump_forward),
        graphs=graphs,
    )
    return EngineLoop(
        scheduler,
        runner,
        inbox,
        send,
        info=_info(resolved, plugins, pool),
        max_queued=config.schedule.max_queued_requests,
        heartbeat=heartbeat,
        update_weights=WeightUpdater(resolved, backend, kernels, quantization),
        model_controls=lambda: runner.model.controls(),
        constraints=_constraints(resolved),
    )


def _constraints(resolved: Resolved) -> Constraints:
    if "grammar" not in resolved.choices:
        return Constraints(resolved.no_grammars or "the model does not generate")
    return Constraints(BackendCompiler(resolved), forms=forms(resolved.grammars))


def _kv_pool(resolved: Resolved, pool: SlotPool) -> KVPool:
    kv = KVPool.of(resolved.shape, slots=pool.rows, dtype=resolved.dtype, device=resolved.device)
    logger.info("KV Cache is allocated. #tokens: %d, size: %.2f GB", pool.capacity, _pool_bytes(resolved, pool) / GIB)
    return kv


def _attention(resolved: Resolved) -> AttentionBackend:
    component = resolved.choices["attention"].component
    backend: AttentionBackend = component.load(AttentionBackend)(resolved.shape, resolved.device, component.settings())
    return backend


def _kernels(resolved: Resolved) -> Kernels:
    found = resolved.load("kernels")
    kernels = found if isinstance(found, Kernels) else found()
    if not isinstance(kernels, Kernels):
        raise ConfigError(f"{resolved.choices['kernels'].component} is not a Kernels, but {type(kernels).__name__}")
    return kernels


def _quantization(resolved: Resolved, kernels: Kernels) -> Quantization | None:
    """The quantization that was chosen, built for this checkpoint."""
    if "quantization" not in resolved.choices:
        return None
    component = resolved.choices["quantization"].component
    stored = stored_quantization(resolved.checkpoint.config)
    request = QuantizationRequest(device=resolved.device, dtype=resolved.dtype, stored=stored, kernels=kernels)
    found = component.load()(request, component.settings())
    if not isinstance(found, Quantization):
        raise ConfigError(f"{component} did not give a Quantization, but {type(found).__name__}")
    return found


def _graphs(resolved: Resolved, backend: AttentionBackend, kv: KVPool | None, pool: SlotPool) -> DecodeGraphs | None:
    """Graphs for decoding, where device, backend, task and configuration allow them; not captured yet."""
    options = resolved.config.backends
    if kv is None or "generate" not in resolved.tasks:
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
    return DecodeGraphs(
        backend,
        kv,
        recorder or CudaRecorder(resolved.device),
        device=resolved.device,
        page_size=resolved.config.cache.page_size,
        most=min(resolved.max_running, options.cuda_graph_max_bs),
        width=min(resolved.context_length, pool.capacity),
    )


def _bytes_per_slot(resolved: Resolved) -> int:
    return resolved.shape.layers * resolved.shape.pooled * resolved.dtype.itemsize


def _pool_bytes(resolved: Resolved, pool: SlotPool) -> int:
    return pool.rows * _bytes_per_slot(resolved)


def _capacity(resolved: Resolved) -> int:
    """KV slots: what was asked for, or what fits and could be used at all."""
    cache, page = resolved.config.cache, resolved.config.cache.page_size
    if page < 1:
        raise ConfigError(f"--page-size must be at least 1, got {page}")
    if cache.max_total_tokens is not None:
        if cache.max_total_tokens < 2 * page:
            raise ConfigError(f"--max-total-tokens must be at least {2 * page}, got {cache.max_total_tokens}")
        return cache.max_total_tokens
    free, fraction = _free_bytes(resolved)
    useful = resolved.max_running * (resolved.context_length + page)
    if not resolved.causal:
        return useful  # slots are only counted: an encoder keeps no keys and values
    slots = min(int(free // _bytes_per_slot(resolved)), useful)
    if slots < 2 * page:
        raise ConfigError(
            f"no memory for a KV pool: {free / GIB:.2f} GiB are left of the {fraction:.0%} that "
            f"--mem-fraction-static allows, and a slot takes {_bytes_per_slot(resolved)} bytes; raise "
            "--mem-fraction-static, set --max-total-tokens, or serve a smaller model"
        )
    return slots


def _free_bytes(resolved: Resolved) -> tuple[float, float]:
    """Bytes the pool may take, and the fraction that follows from."""
    wanted = resolved.config.cache.mem_fraction_static
    if resolved.device.type == "cuda":
        fraction = ACCELERATOR_FRACTION if wanted is None else wanted
        free, total = torch.cuda.mem_get_info(resolved.device)
        return total * fraction - (total - free), fraction
    fraction = CPU_FRACTION if wanted is None else wanted
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * fraction, fraction


def _info(resolved: Resolved, plugins: Plugins, pool: SlotPool) -> dict[str, Any]:
    """What is known of the engine; plain data, it crosses the process line."""
    config, checkpoint = resolved.config, resolved.checkpoint
    return {
        "model_path": checkpoint.source,
        "checkpoint_path": str(checkpoint.path),
        "architecture": checkpoint.architecture,
        "model_type": getattr(checkpoint.config, "model_type", "") or "",
        "tasks": list(resolved.tasks),
        "context_length": resolved.context_length,
        "vocab_size": resolved.vocab_size,
        "dtype": str(resolved.dtype).removeprefix("torch."),
        "quantization": _quantization_name(resolved),
        "device": str(resolved.device),
        "max_total_tokens": pool.capacity,
        "max_running_requests": resolved.max_running,
        "max_queued_requests": config.schedule.max_queued_requests,
        "chunked_prefill_size": resolved.chunk,
        "page_size": config.cache.page_size,
        "components": {kind: choice.describe() for kind, choice in resolved.choices.items()},
        "eos_token_ids": list(resolved.eos_token_ids),
        "generation": dict(checkpoint.generation),
        "normalized": resolved.pooling.normalize,
        "labels": _labels(checkpoint.config),
        "labels_exclusive": getattr(checkpoint.config, "problem_type", None) != "multi_label_classification",
        "fingerprint": [list(one) for one in plugins.fingerprint],
        "random_seed": config.random_seed,
    }


def _quantization_name(resolved: Resolved) -> str | None:
    chosen = resolved.choices.get("quantization")
    return None if chosen is None else chosen.component.spec.name


def _labels(config: Any) -> list[str]:
    """Names of a classifier's classes, in order, as far as the checkpoint gives them."""
    named = getattr(config, "id2label", None) or {}
    return [str(named[index]) for index in sorted(named)]
