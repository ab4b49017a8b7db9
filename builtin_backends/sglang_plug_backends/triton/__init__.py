"""Attention kernels in Triton: split-KV decoding and paged prefill, for NVIDIA GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import AttentionSpec, hookimpl


@hookimpl
def register_attention_backends() -> Iterator[AttentionSpec]:
    yield AttentionSpec(
        name="triton",
        target=f"{__name__}.attention:TritonAttention",
        settings=f"{__name__}.settings:TritonSettings",
        summary="Triton kernels for NVIDIA GPUs; on a CPU they are interpreted, which is very slow",
        devices=frozenset({"cuda", "cpu"}),
        graphs=True,
        needs=("triton",),
    )
