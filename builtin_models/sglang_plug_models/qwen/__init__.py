"""Qwen2, Qwen2.5 and Qwen3, dense."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(
        name="Qwen2ForCausalLM", target=f"{__name__}.qwen2:Qwen2", summary="Qwen2 and Qwen2.5", parallel=True
    )
    yield ModelSpec(name="Qwen3ForCausalLM", target=f"{__name__}.qwen3:Qwen3", summary="Qwen3", parallel=True)
