"""Fallback for models without a plugin, through transformers' code.

Causal models generate with this engine's attention and KV pool; models that embed or score run unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from sglang_plug import Facts, ModelSpec, Task, hookimpl

CAUSAL = ("ForCausalLM", "LMHeadModel")
"""Suffixes of class names of generative models in transformers."""
POOLING: tuple[tuple[str, str, tuple[Task, ...], str], ...] = (
    ("transformers-encoder", "TransformersEncoder", ("embed",), "any encoder of transformers"),
    ("transformers-decoder", "TransformersDecoder", ("embed",), "any decoder of transformers without a head"),
    (
        "transformers-classifier",
        "TransformersClassifier",
        ("classify", "rerank"),
        "any model of transformers that scores texts or pairs of texts",
    ),
)
"""Name, class, tasks and summary of the models that compute each text on its own."""


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(
        name="transformers",
        target=f"{__name__}.model:TransformersModel",
        summary="any causal model of transformers whose attention can be replaced",
        generic=True,
        needs=("transformers",),
    )
    yield ModelSpec(
        name="transformers-text",
        target=f"{__name__}.text_decoder:TransformersText",
        summary="text with the decoder of a vision-language model of transformers, without its other parts",
        generic=True,
        needs=("transformers",),
    )
    for name, target, tasks, summary in POOLING:
        yield ModelSpec(
            name=name,
            target=f"{__name__}.pooled:{target}",
            tasks=frozenset[Task](tasks),
            summary=summary,
            causal=False,
            generic=True,
            needs=("transformers",),
        )


@hookimpl(trylast=True)
def choose_component(kind: str, facts: Facts) -> str | None:
    if kind != "model" or facts.model is None:
        return None
    name = str((getattr(facts.model, "architectures", None) or ("",))[0])
    if name.endswith(CAUSAL):
        return "transformers"
    if name.endswith("ForConditionalGeneration") and getattr(facts.model, "text_config", None) is not None:
        return "transformers-text"
    if name.endswith("ForSequenceClassification"):
        return "transformers-classifier"
    if not name.endswith("Model"):
        return None
    result: str | None = import_module(f"{__name__}.reference").body_reader(facts.model)
    return result
