"""Granite 4: Mamba-2 and attention, with or without experts."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(name="GraniteMoeHybridForCausalLM", target=f"{__name__}.model:GraniteHybrid", summary="Granite 4")
