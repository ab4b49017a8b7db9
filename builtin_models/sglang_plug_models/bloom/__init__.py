"""Bloom and Bloomz."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(name="BloomForCausalLM", target=f"{__name__}.model:Bloom", summary="Bloom and Bloomz")
