"""Command R and related models."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    for name, target, summary in (
        ("CohereForCausalLM", "Cohere", "Command R, Command R+ and Aya"),
        ("Cohere2ForCausalLM", "Cohere2", "Command R7B and Command A"),
    ):
        yield ModelSpec(name=name, target=f"{__name__}.model:{target}", summary=summary, parallel=True)
