"""Causal models without a plugin of their own, through transformers' code with this engine's attention and KV pool."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import Facts, ModelSpec, hookimpl

CAUSAL = ("ForCausalLM", "LMHeadModel")
"""How transformers ends the names of models that generate."""


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(
        name="transformers",
        target=f"{__name__}.model:TransformersModel",
        summary="any causal model of transformers whose attention can be replaced",
        generic=True,
        needs=("transformers",),
    )


@hookimpl(trylast=True)
def choose_component(kind: str, facts: Facts) -> str | None:
    if kind != "model" or facts.model is None:
        return None
    names = getattr(facts.model, "architectures", None) or ("",)
    return "transformers" if str(names[0]).endswith(CAUSAL) else None
