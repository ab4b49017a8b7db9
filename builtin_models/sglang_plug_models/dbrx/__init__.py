"""DBRX."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(name="DbrxForCausalLM", target=f"{__name__}.model:Dbrx", summary="DBRX", parallel=True)
