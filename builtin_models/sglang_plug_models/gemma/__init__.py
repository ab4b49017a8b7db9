"""Gemma 2, and Gemma 3 on text."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(name="Gemma2ForCausalLM", target=f"{__name__}.model:Gemma2", summary="Gemma 2", parallel=True)
    yield ModelSpec(
        name="Gemma3ForCausalLM", target=f"{__name__}.model:Gemma3", summary="Gemma 3, text only", parallel=True
    )
