"""Gemma 3 with images."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import MediaProcessorSpec, ModelSpec, hookimpl

ARCHITECTURE = "Gemma3ForConditionalGeneration"


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(
        name=ARCHITECTURE,
        target=f"{__name__}.model:Gemma3VL",
        summary="Gemma 3 with images",
        inputs=frozenset({"text", "image"}),
        parallel=True,
        needs=("transformers>=5.18",),
    )


@hookimpl
def register_media_processors() -> Iterator[MediaProcessorSpec]:
    yield MediaProcessorSpec(
        name="gemma3",
        target=f"{__name__}.processor:load_processor",
        summary="images of one size, between line breaks",
        architectures=frozenset({ARCHITECTURE}),
        needs=("transformers>=5.18", "PIL"),
    )
