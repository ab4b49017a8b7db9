"""RecurrentGemma: gated linear recurrent units, and attention in windows."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(
        name="RecurrentGemmaForCausalLM", target=f"{__name__}.model:RecurrentGemma", summary="RecurrentGemma"
    )
