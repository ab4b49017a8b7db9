"""Llama 4."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    for name, target in (("Llama4ForCausalLM", "Llama4"), ("Llama4ForConditionalGeneration", "Llama4Text")):
        yield ModelSpec(
            name=name,
            target=f"{__name__}.model:{target}",
            summary="Llama 4 Scout and Maverick, text only",
            parallel=True,
        )
