"""GLM-4.1V and GLM-4.5V: GLM-4 with images."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import MediaProcessorSpec, ModelSpec, hookimpl

ARCHITECTURES = {
    "Glm4vForConditionalGeneration": ("Glm4v", "GLM-4.1V and GLM-4.6V-Flash"),
    "Glm4vMoeForConditionalGeneration": ("Glm4vMoe", "GLM-4.5V and GLM-4.6V, with experts"),
}
"""Class and summary of each architecture."""


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    for name, (target, summary) in ARCHITECTURES.items():
        yield ModelSpec(
            name=name,
            target=f"{__name__}.model:{target}",
            summary=summary,
            inputs=frozenset({"text", "image"}),
            parallel=True,
            needs=("transformers>=5.18",),
        )


@hookimpl
def register_media_processors() -> Iterator[MediaProcessorSpec]:
    yield MediaProcessorSpec(
        name="glm-vl",
        target=f"{__name__}.processor:load_processor",
        summary="images of any size, cut into patches",
        architectures=frozenset(ARCHITECTURES),
        needs=("transformers>=5.18", "PIL"),
    )
