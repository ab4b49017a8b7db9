"""Falcon 7B, 40B, 180B and Falcon 2."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(
        name="FalconForCausalLM", target=f"{__name__}.model:Falcon", summary="Falcon 7B, 40B, 180B and Falcon 2"
    )
