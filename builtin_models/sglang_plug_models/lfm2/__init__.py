"""LFM2: short convolutions and attention, with or without experts."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(name="Lfm2ForCausalLM", target=f"{__name__}.model:Lfm2", summary="LFM2")
    yield ModelSpec(name="Lfm2MoeForCausalLM", target=f"{__name__}.model:Lfm2Moe", summary="LFM2 with experts")
