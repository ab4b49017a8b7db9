"""Kimi Linear: delta attention, latent attention in some layers, and experts."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(name="KimiLinearForCausalLM", target=f"{__name__}.model:KimiLinear", summary="Kimi Linear")
