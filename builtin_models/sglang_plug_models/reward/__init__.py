"""Decoders with a head that scores or labels a text: reward models and classifiers."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, Task, hookimpl

CLASSIFIERS = ("Gemma2", "Llama", "Mistral", "Qwen2", "Qwen3")


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    classify = frozenset[Task]({"classify"})
    for family in CLASSIFIERS:
        yield ModelSpec(
            name=f"{family}ForSequenceClassification",
            target=f"{__name__}.scorers:{family}Scorer",
            tasks=classify,
            summary=f"{family} with a matrix that scores the last token's state",
            parallel=True,
        )
    yield ModelSpec(
        name="Qwen2ForRewardModel",
        target=f"{__name__}.scorers:Qwen2Reward",
        tasks=classify,
        summary="Qwen2 with two matrices that score the last token's state",
        parallel=True,
    )
