"""FlashInfer's attention kernels for NVIDIA GPUs from Ampere on; chosen by default if they fit the model."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from sglang_plug import AttentionSpec, Facts, hookimpl

HEAD_DIMS = (64, 128, 256)
DTYPES = ("float16", "bfloat16")
KV_DTYPES = {"fp8_e4m3": "torch.float8_e4m3fn", "fp8_e5m2": "torch.float8_e5m2"}
MIN_CAPABILITY = (8, 0)
USUAL_CUDA_HOME = Path("/usr/local/cuda")
logger = logging.getLogger(__name__)


@hookimpl
def register_attention_backends() -> Iterator[AttentionSpec]:
    yield AttentionSpec(
        name="flashinfer",
        target=f"{__name__}.attention:FlashInferAttention",
        settings=f"{__name__}.settings:FlashInferSettings",
        summary="FlashInfer's kernels for NVIDIA GPUs (float16 and bfloat16), compiled at first use",
        devices=frozenset({"cuda"}),
        graphs=True,
        kv_dtypes=frozenset(KV_DTYPES),
        needs=("flashinfer",),
    )


@hookimpl(trylast=True)
def choose_component(kind: str, facts: Facts) -> str | None:
    """Choose FlashInfer on CUDA if it can serve the model, otherwise Triton's kernels if Triton is installed."""
    if kind != "attention" or facts.device != "cuda":
        return None
    reason = why_not(facts)
    if not reason:
        logger.info("Attention backend flashinfer is chosen: it serves the model's shape and dtype on this device")
        return "flashinfer"
    if not _installed("triton"):
        return None
    logger.info("Attention backend triton is chosen, and not flashinfer: %s", reason)
    return "triton"


def why_not(facts: Facts, cuda_home: Path = USUAL_CUDA_HOME) -> str:
    """Return the reason why FlashInfer cannot serve ``facts``, or an empty string if it can.

    ``cuda_home`` is searched for a compiler after the folders that environment variables name.
    """
    shape, capability = facts.shape, facts.platform.get("capability", (0, 0))
    if not _installed("flashinfer"):
        return "flashinfer-python is not installed"
    if tuple(capability) < MIN_CAPABILITY:
        return f"the device's compute capability is {'.'.join(map(str, capability))}, and it needs 8.0"
    if facts.dtype not in DTYPES:
        return f"it computes in {' and '.join(DTYPES)}, not in {facts.dtype}"
    if shape is None or shape.dim not in HEAD_DIMS:
        return f"it serves head dimensions {', '.join(map(str, HEAD_DIMS))}, not {getattr(shape, 'dim', 'unknown')}"
    if (shape.value_dim or shape.dim) != shape.dim:
        return f"it needs keys and values of one dimension, not {shape.dim} and {shape.value_dim}"
    if shape.sinks:
        return "it has no attention sinks"
    if shape.kv_dtype is not None and str(shape.kv_dtype) not in KV_DTYPES.values():
        return f"it reads keys and values in the model's dtype, {' or '.join(KV_DTYPES)}, not in {shape.kv_dtype}"
    if shape.heads % shape.kv_heads:
        return (
            "it needs the number of query heads to be a multiple of the number of key-value heads, got "
            f"{shape.heads} and {shape.kv_heads}"
        )
    if not _has_compiler(cuda_home) and not _installed("flashinfer_jit_cache"):
        return "there is no CUDA compiler (nvcc) for its kernels, nor the package of compiled ones"
    return ""


def _has_compiler(cuda_home: Path) -> bool:
    """Return True if FlashInfer finds ``nvcc`` on the path or in the CUDA folder."""
    homes = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), cuda_home)
    return bool(shutil.which("nvcc")) or any(home and os.path.exists(f"{home}/bin/nvcc") for home in homes)


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
