"""OLMo Hybrid: gated DeltaNets, and attention in some layers."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(name="OlmoHybridForCausalLM", target=f"{__name__}.model:OlmoHybrid", summary="OLMo Hybrid")
