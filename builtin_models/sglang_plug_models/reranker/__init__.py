"""Encoders with a head that scores or labels a text, or a pair of texts read together (cross-encoders)."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, Task, hookimpl

FAMILIES = {"Bert": "BertScorer", "Roberta": "RobertaScorer", "XLMRoberta": "RobertaScorer"}


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    for family, target in FAMILIES.items():
        yield ModelSpec(
            name=f"{family}ForSequenceClassification",
            target=f"{__name__}.scorers:{target}",
            tasks=frozenset[Task]({"classify", "rerank"}),
            causal=False,
            summary=f"{family} with a head that scores texts and pairs of texts",
        )
