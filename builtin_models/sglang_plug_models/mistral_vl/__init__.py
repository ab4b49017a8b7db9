"""Mistral Small 3.1 and later, and Ministral 3: Mistral with images."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import MediaProcessorSpec, ModelSpec, hookimpl

ARCHITECTURE = "Mistral3ForConditionalGeneration"


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(
        name=ARCHITECTURE,
        target=f"{__name__}.model:Mistral3",
        summary="Mistral Small 3.1 and later and Ministral 3, with images",
        inputs=frozenset({"text", "image"}),
        parallel=True,
        needs=("transformers>=5.18",),
    )


@hookimpl
def register_media_processors() -> Iterator[MediaProcessorSpec]:
    yield MediaProcessorSpec(
        name="pixtral",
        target=f"{__name__}.processor:load_processor",
        summary="images of any size, row by row",
        architectures=frozenset({ARCHITECTURE}),
        needs=("transformers>=5.18", "PIL"),
    )
