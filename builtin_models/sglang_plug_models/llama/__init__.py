"""Llama 2 and 3, and checkpoints of the same architecture."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(name="LlamaForCausalLM", target=f"{__name__}.model:Llama", summary="Llama 2 and 3", parallel=True)
