"""Three generations of GLM-4."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    for name, target, summary in (
        ("GlmForCausalLM", "model:Glm", "GLM-4 (2024) and GLM-Edge"),
        ("Glm4ForCausalLM", "model:Glm4", "GLM-4-0414 and GLM-Z1"),
        ("Glm4MoeForCausalLM", "moe:Glm4Moe", "GLM-4.5, 4.6 and 4.7"),
    ):
        yield ModelSpec(name=name, target=f"{__name__}.{target}", summary=summary, parallel=True)
