"""Granite 3, dense models on text."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(
        name="GraniteForCausalLM", target=f"{__name__}.model:Granite", summary="Granite 3, dense", parallel=True
    )
