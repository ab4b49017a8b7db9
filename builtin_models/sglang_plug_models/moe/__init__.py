"""Mixtures of experts: Qwen1.5-MoE, Qwen2-MoE, Qwen3-MoE and Mixtral."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(
        name="Qwen2MoeForCausalLM",
        target=f"{__name__}.qwen_moe:Qwen2Moe",
        summary="Qwen1.5-MoE and Qwen2-MoE",
        parallel=True,
    )
    yield ModelSpec(
        name="Qwen3MoeForCausalLM", target=f"{__name__}.qwen_moe:Qwen3Moe", summary="Qwen3-MoE", parallel=True
    )
    yield ModelSpec(name="MixtralForCausalLM", target=f"{__name__}.mixtral:Mixtral", summary="Mixtral", parallel=True)
