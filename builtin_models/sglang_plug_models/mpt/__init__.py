"""MPT."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    for name in ("MptForCausalLM", "MPTForCausalLM"):  # as transformers and as the published checkpoints call it
        yield ModelSpec(name=name, target=f"{__name__}.model:Mpt", summary="MPT with ALiBi")
