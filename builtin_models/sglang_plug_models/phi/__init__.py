"""Phi-3 and Phi-4."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(
        name="Phi3ForCausalLM", target=f"{__name__}.model:Phi3", summary="Phi-3, Phi-3.5 and Phi-4", parallel=True
    )
