"""Kernels in Triton for NVIDIA GPUs: split-KV decoding and paged prefill, norms, rotation, activations, experts."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from sglang_plug import AttentionSpec, Facts, KernelSpec, hookimpl


@hookimpl
def register_attention_backends() -> Iterator[AttentionSpec]:
    yield AttentionSpec(
        name="triton",
        target=f"{__name__}.attention:TritonAttention",
        settings=f"{__name__}.settings:TritonSettings",
        summary="Triton kernels for NVIDIA GPUs; on a CPU they are interpreted, which is very slow",
        devices=frozenset({"cuda", "cpu"}),
        graphs=True,
        kv_dtypes=frozenset({"bfloat16", "float16", "float32", "fp8_e4m3", "fp8_e5m2"}),
        needs=("triton",),
    )


@hookimpl
def register_kernels() -> Iterator[KernelSpec]:
    yield KernelSpec(
        name="triton",
        target=f"{__name__}.kernel_set:build",
        settings=f"{__name__}.settings:TritonSettings",
        summary="fused norms, rotation, activations and experts, products of one row; interpreted on a CPU, very slow",
        devices=frozenset({"cuda", "cpu"}),
        needs=("triton",),
    )


@hookimpl
def choose_component(kind: str, facts: Facts) -> str | None:
    """Choose these kernels on CUDA.

    Not marked ``trylast``: among such hooks the one that accepts everything would be asked before.
    """
    if kind != "kernels" or facts.device != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    return "triton"
