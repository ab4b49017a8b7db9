"""OLMo 2."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(name="Olmo2ForCausalLM", target=f"{__name__}.model:Olmo2", summary="OLMo 2", parallel=True)
