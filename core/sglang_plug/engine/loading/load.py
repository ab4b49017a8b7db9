"""Building a model and loading its weights."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from torch import Tensor

from sglang_plug.config import ConfigError
from sglang_plug.contracts.model.attention import AttentionBackend
from sglang_plug.contracts.model.checkpoint import WeightLoader
from sglang_plug.contracts.model.kernels import Kernels
from sglang_plug.contracts.model.model import BuildEnv, Model, WeightError
from sglang_plug.contracts.model.quantization import Quantization
from sglang_plug.contracts.serving.executor import SINGLE_RANK, Collectives
from sglang_plug.plugins.attribution import attributed
from sglang_plug.system.freed_memory import return_freed_memory
from sglang_plug.system.out_of_memory import is_out_of_memory
from sglang_plug.system.torch_defaults import default_dtype

from .kv_scales import KVScaleReader
from .resolve import Resolved

logger = logging.getLogger(__name__)

TEXT = frozenset({"text"})


def load_model(
    resolved: Resolved,
    backend: AttentionBackend,
    kernels: Kernels,
    quantization: Quantization | None = None,
    ranks: Collectives = SINGLE_RANK,
    inspect: Callable[[Model], None] = lambda model: None,
) -> Model:
    """Build the model, or this rank's part of it, on its device and load its weights, one tensor at a time.

    ``inspect`` is called with the model before its weights are read, so that it can refuse an unsuitable model early.
    """
    started = time.perf_counter()
    logger.info("Load weight begin. architecture=%s", resolved.checkpoint.architecture)
    env = BuildEnv(
        attention=backend,
        kernels=kernels,
        quantization=quantization,
        context_length=resolved.context_length,
        pooling=resolved.pooling.to(resolved.device),
        tasks=resolved.tasks,
        ranks=ranks,
        shares_tokens=resolved.inputs == TEXT,  # rank 0 may embed some alone, while it encodes other inputs
    )
    attributed_to_model = partial(
        attributed, resolved.choices["model"].component, among=resolved.components, passes=is_out_of_memory
    )
    with attributed_to_model("to build its layers"), default_dtype(resolved.dtype), resolved.device:
        model = resolved.model_class(resolved.checkpoint.config, env)
    with attributed_to_model("to have its matrices quantized"):
        model.quantize()
    inspect(model)
    scales = KVScaleReader(model, resolved.checkpoint.kv_scale)
    with attributed_to_model("to load its weights"), _naming_loader_and_model(resolved):
        model.load_weights(scales.weights(_weights(resolved, model)))
    model.kv_scales = scales.scales(resolved)
    model.requires_grad_(False).eval()
    with attributed_to_model("to pack its weights"):
        model.prepare()
    return_freed_memory()  # of the unpacked weights
    logger.info(
        "Load weight end. type=%s, dtype=%s, %.1f s",
        type(model).__name__,
        resolved.dtype,
        time.perf_counter() - started,
    )
    return model


def _weights(resolved: Resolved, model: Model) -> Iterator[tuple[str, Tensor]]:
    choice = resolved.choices["weights"]
    component = choice.component
    load: WeightLoader = component.factory()
    try:
        with attributed(component, "to read weights", passes=is_out_of_memory):
            yield from load(resolved.checkpoint, model)
    except WeightError:
        raise
    except ConfigError as error:
        error.args = (f"{error}{choice.note}",)
        raise


@contextmanager
def _naming_loader_and_model(resolved: Resolved) -> Iterator[None]:
    """Name loader and model in a ``WeightError``, because either may be at fault for weights that do not fit."""
    try:
        yield
    except WeightError as error:
        loader, model = (resolved.choices[kind].component for kind in ("weights", "model"))
        error.args = (f"{error}\n  (read by {loader}, loaded by {model})",)
        raise
