"""Building a model and filling it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from sglang_plug.attention import AttentionBackend
from sglang_plug.attribution import attributed
from sglang_plug.executor import ALONE, Collectives
from sglang_plug.kernels import Kernels
from sglang_plug.model import BuildEnv, Model, Seeing, WeightError
from sglang_plug.policy import WeightLoader
from sglang_plug.quantization import Quantization

from .kv_scales import KVScaleReader
from .memory import is_out_of_memory
from .resolve import Resolved

logger = logging.getLogger(__name__)


def load_model(
    resolved: Resolved,
    backend: AttentionBackend,
    kernels: Kernels,
    quantization: Quantization | None = None,
    ranks: Collectives = ALONE,
) -> Model:
    """Build the model, or this rank's part of it, on its device and fill it, one tensor at a time."""
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
        shares_tokens=not issubclass(resolved.model_class, Seeing),  # rank 0 may embed some while it looks, alone
    )
    of_model = partial(
        attributed, resolved.choices["model"].component, among=resolved.components, passes=is_out_of_memory
    )
    with of_model("to build its layers"), _defaults(resolved.dtype, resolved.device):
        model = resolved.model_class(resolved.checkpoint.config, env)
    with of_model("to have its matrices quantized"):
        model.quantize()
    scales = KVScaleReader(model, resolved.checkpoint.kv_scale)
    with of_model("to load its weights"), _signed(resolved):
        model.load_weights(scales.weights(_weights(resolved, model)))
    model.kv_scales = scales.scales(resolved)
    model.requires_grad_(False).eval()
    with of_model("to pack its weights"):
        model.prepare()
    logger.info(
        "Load weight end. type=%s, dtype=%s, %.1f s",
        type(model).__name__,
        resolved.dtype,
        time.perf_counter() - started,
    )
    return model


def _weights(resolved: Resolved, model: Model) -> Iterator[tuple[str, Tensor]]:
    component = resolved.choices["weights"].component
    load: WeightLoader = component.load()
    with attributed(component, "to read weights", passes=is_out_of_memory):
        yield from load(resolved.checkpoint, model)


@contextmanager
def _signed(resolved: Resolved) -> Iterator[None]:
    """Weights that do not fit may be the loader's fault or the model's: both are named."""
    try:
        yield
    except WeightError as error:
        loader, model = (resolved.choices[kind].component for kind in ("weights", "model"))
        error.args = (f"{error}\n  (read by {loader}, loaded by {model})",)
        raise


@contextmanager
def _defaults(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(before)
