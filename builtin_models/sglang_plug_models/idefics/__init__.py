"""Idefics 3 and SmolVLM: a decoder with vision encoder states of an image's tiles."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import MediaProcessorSpec, ModelSpec, hookimpl

ARCHITECTURES = {
    "Idefics3ForConditionalGeneration": ("Idefics3", "Idefics 3 with images"),
    "SmolVLMForConditionalGeneration": ("SmolVLM", "SmolVLM and SmolVLM 2 with images"),
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
        name="idefics",
        target=f"{__name__}.processor:load_processor",
        summary="images of any size, whole and in tiles with row and column markers",
        architectures=frozenset(ARCHITECTURES),
        needs=("transformers>=5.18", "PIL"),
    )
