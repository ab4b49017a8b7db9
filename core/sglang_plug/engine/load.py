"""Building a model and filling it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sglang_plug.attention import AttentionBackend
from sglang_plug.kernels import Kernels
from sglang_plug.model import BuildEnv, Model
from sglang_plug.quantization import Quantization

from .resolve import Resolved

logger = logging.getLogger(__name__)


def load_model(
    resolved: Resolved, backend: AttentionBackend, kernels: Kernels, quantization: Quantization | None = None
) -> Model:
    """Build the model on its device and fill it, one tensor at a time."""
    started = time.perf_counter()
    logger.info("Load weight begin. architecture=%s", resolved.checkpoint.architecture)
    env = BuildEnv(
        attention=backend,
        kernels=kernels,
        quantization=quantization,
        context_length=resolved.context_length,
        pooling=resolved.pooling,
        tasks=resolved.tasks,
    )
    with _defaults(resolved.dtype, resolved.device):
        model = resolved.model_class(resolved.checkpoint.config, env)
    model.quantize()
    model.load_weights(resolved.load("weights")(resolved.checkpoint, model))
    model.requires_grad_(False).eval()
    model.prepare()
    logger.info(
        "Load weight end. type=%s, dtype=%s, %.1f s",
        type(model).__name__,
        resolved.dtype,
        time.perf_counter() - started,
    )
    return model


@contextmanager
def _defaults(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(before)
