"""Mistral and Ministral 3."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(
        name="MistralForCausalLM",
        target=f"{__name__}.model:Mistral",
        summary="Mistral 7B and compatible checkpoints",
        parallel=True,
    )
    yield ModelSpec(
        name="Ministral3ForCausalLM",
        target=f"{__name__}.ministral:Ministral3",
        summary="Ministral 3, text only",
        parallel=True,
    )
