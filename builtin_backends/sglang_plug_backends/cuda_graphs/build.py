"""The step extensions that make decode graphs and piecewise graphs for the KV pool of an engine."""

from __future__ import annotations

import logging
from functools import partial

from sglang_plug import (
    ExecutionContext,
    ExecutionPhase,
    ExtensionContext,
    GraphCapable,
    ModelSpec,
    StepExecutor,
    StepExtension,
)

from .cuda_recorder import CudaRecorder
from .decode_graphs import DecodeGraphs
from .prefill_graphs import NAME, PrefillGraphs

logger = logging.getLogger(__name__)


class DecodeGraphsExtension(StepExtension, ExecutionPhase):
    """Makes decode graphs, if the device or the attention backend can capture steps."""

    memory_name = "graphs"

    def __init__(self, context: ExtensionContext) -> None:
        self._context, self._options = context, context.config.backends
        self.memory_advice = (
            f"lower --cuda-graph-max-bs (now {self._options.cuda_graph_max_bs}), --mem-fraction-static or "
            "--max-total-tokens, or set --disable-cuda-graph"
        )

    def executor(self, context: ExecutionContext) -> StepExecutor | None:
        """Return the decode graphs of a pool; ``None`` if device, backend or configuration rule them out."""
        backend, engine = context.backend, self._context
        recorder = backend.recorder() if isinstance(backend, GraphCapable) else None
        if engine.device.type != "cuda" and recorder is None:
            return None
        name = CudaRecorder.name if recorder is None else recorder.name
        if self._options.disable_cuda_graph or not isinstance(backend, GraphCapable):
            disabled = self._options.disable_cuda_graph
            why = "--disable-cuda-graph" if disabled else f"{context.attention} does not offer them"
            logger.info("Decoding runs without %ss: %s", name, why)
            return None
        return DecodeGraphs(
            backend,
            context.kv,
            recorder or CudaRecorder(engine.device),
            device=engine.device,
            page_size=engine.config.cache.page_size,
            max_size=min(engine.max_running, self._options.cuda_graph_max_bs),
            width=context.max_context,
            ranks=engine.ranks if engine.ranks.size > 1 else None,
            collectives=context.collectives,
            static_inputs=context.static_inputs,
            extensions=context.graphs,
        )


class PiecewiseGraphsExtension(StepExtension, ExecutionPhase):
    """Makes piecewise graphs for steps of at most ``max_tokens`` tokens."""

    memory_name = "piecewise graphs"

    def __init__(self, context: ExtensionContext, max_tokens: int) -> None:
        self._context, self._max_tokens = context, max_tokens
        self.memory_advice = (
            "lower --piecewise-cuda-graph-max-tokens (now "
            f"{context.config.backends.piecewise_cuda_graph_max_tokens}), --mem-fraction-static or --max-total-tokens"
        )

    def executor(self, context: ExecutionContext) -> StepExecutor:
        """Return the piecewise graphs of a pool."""
        device = self._context.device
        page_size = self._context.config.cache.page_size
        make = partial(PrefillGraphs, context.backend, context.kv, CudaRecorder(device))
        return make(device=device, page_size=page_size, max_tokens=self._max_tokens)


def build_decode_graphs(context: ExtensionContext) -> StepExtension | None:
    """Return the extension; ``None`` for a model that generates no text."""
    if not context.model.spec_as(ModelSpec).causal or "generate" not in context.tasks:
        return None
    return DecodeGraphsExtension(context)


def build_piecewise_graphs(context: ExtensionContext) -> StepExtension | None:
    """Return the extension; ``None`` if graphs are disabled, or if device or model do not support them."""
    options = context.config.backends
    max_tokens = min(options.piecewise_cuda_graph_max_tokens, context.chunk_size + context.max_running)
    if max_tokens < 1 or options.disable_cuda_graph:
        return None
    alone = context.device.type == "cuda" and context.ranks.size == 1
    if not alone or not context.model.spec_as(ModelSpec).causal or context.states:
        logger.info(
            "Prompts run without %ss: they need a decoder without recurrent state on a single CUDA device", NAME
        )
        return None
    return PiecewiseGraphsExtension(context, max_tokens)
