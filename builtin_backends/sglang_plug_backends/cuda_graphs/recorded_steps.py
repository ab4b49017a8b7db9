"""Steps of up to some hundred tokens, with prompts or without: replayed instead of computed operation by operation."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from collections.abc import Sequence as Ordered

import torch
from torch import Tensor

from sglang_plug import (
    CannotCaptureError,
    ExecutionContext,
    ExecutionPhase,
    ExtensionContext,
    ForwardBatch,
    KVPool,
    Model,
    ModelSpec,
    ReplayCapable,
    StepExecutor,
    StepExtension,
    TokenReplay,
)
from sglang_plug.layers import Router

from .graph_check import same_bits

CHECKS = 3
"""Steps of different numbers of tokens that are computed both ways, and must have the same bits: so many of which all
results are read, and as many others."""
logger = logging.getLogger(__name__)


class RecordedSteps(StepExecutor):
    """Records the forward pass of one model, and replays it for each step.

    Args:
        backend: the attention backend.
        kv: the pool; its slot 0 belongs to padding.
        page_size: slots in a page.
    """

    def __init__(self, backend: ReplayCapable, kv: KVPool, page_size: int) -> None:
        self._backend, self._kv, self._page_size = backend, kv, page_size
        self.sizes = (backend.recorded_tokens,)
        self._model: Callable[[], Model | None] = lambda: None
        self._replay: TokenReplay | None = None
        self.replays = 0
        """Number of steps that were replayed."""
        self._checked: dict[bool, set[int]] = {True: set(), False: set()}

    @torch.inference_mode()
    def capture(self, model: Model, *, must_fit: bool = False) -> None:
        """Record ``model``; one that cannot be recorded is computed without, and the log says why."""
        self._model, self._replay, self._checked = weakref.ref(model), None, {True: set(), False: set()}
        try:
            self._replay = self._record(model)
        except CannotCaptureError as error:
            logger.info("Steps with prompts are not recorded: %s", error)
        except Exception as error:
            text = "Steps with prompts cannot be recorded (slower): %s: %s"
            logger.warning(text, type(error).__name__, error)

    def capture_sizes(self, model: Model, sizes: Ordered[int]) -> None:
        """Record ``model``, which takes the same memory for all sizes."""
        self.capture(model)

    def hidden(self, model: Model, batch: ForwardBatch) -> Tensor | None:
        """Return ``[T, hidden]`` of a planned step, ``None`` if it cannot be replayed. Records new weights first."""
        tokens = len(batch.input_ids)
        if tokens > self.sizes[0] or batch.multimodal is not None or batch.recurrent is not None:
            return None
        if model is not self._model():
            self.capture(model)
        if self._replay is None:
            return None
        try:
            result = self._replay.run(batch)
        except Exception as error:  # of a torch operation whose shape depends on the number of tokens
            self._replay = None
            logger.info("Steps with prompts are not recorded: %s", error)
            return None
        self.replays += 1
        checked = self._checked[batch.output_rows is None]
        if len(checked) < CHECKS and tokens not in checked and batch.output_rows != []:
            checked.add(tokens)
            return self._check(model, batch, result)
        return result

    def _record(self, model: Model) -> TokenReplay:
        if any(isinstance(module, Router) for module in model.modules()):
            raise CannotCaptureError("the experts of a token depend on its values")
        return self._backend.record_largest_step(model, self._kv, self._page_size)

    def _check(self, model: Model, batch: ForwardBatch, replayed: Tensor) -> Tensor:
        """Compute a step operation by operation, too; nothing is replayed any more if the bits differ."""
        computed: Tensor = model(batch)
        rows = slice(None) if batch.output_rows is None else batch.output_rows
        if not same_bits(computed[rows], replayed[rows]):
            self._replay = None
            logger.info(
                "Steps with prompts are not recorded: results differ from recorded ones, as the model computes "
                "something in Python"
            )
        return computed


class RecordedStepsExtension(StepExtension, ExecutionPhase):
    """Makes the recording, if the attention backend can record forward passes."""

    memory_name = "recorded steps"
    memory_advice = "lower --mem-fraction-static or --max-total-tokens, or set --disable-cuda-graph"

    def __init__(self, context: ExtensionContext) -> None:
        self._page_size = context.config.cache.page_size

    def executor(self, context: ExecutionContext) -> StepExecutor | None:
        """Return the recorded steps of a pool; ``None`` if the attention backend cannot record them."""
        if not isinstance(context.backend, ReplayCapable):
            return None
        return RecordedSteps(context.backend, context.kv, self._page_size)


def build_recorded_steps(context: ExtensionContext) -> StepExtension | None:
    """Return the extension; ``None`` if graphs are disabled, or for several ranks or a model that is no decoder."""
    decoder = context.model.spec_as(ModelSpec).causal and not context.states
    alone = context.device.type == "cpu" and context.ranks.size == 1
    if context.config.backends.disable_cuda_graph or not decoder or not alone:
        return None
    return RecordedStepsExtension(context)
