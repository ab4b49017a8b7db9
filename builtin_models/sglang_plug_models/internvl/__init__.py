"""InternVL: a decoder with vision encoder states of an image's tiles."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import MediaProcessorSpec, ModelSpec, hookimpl

ARCHITECTURE = "InternVLForConditionalGeneration"


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(
        name=ARCHITECTURE,
        target=f"{__name__}.model:InternVL",
        summary="InternVL 3 and 3.5 with images",
        inputs=frozenset({"text", "image"}),
        parallel=True,
        needs=("transformers>=5.18",),
    )


@hookimpl
def register_media_processors() -> Iterator[MediaProcessorSpec]:
    yield MediaProcessorSpec(
        name="internvl",
        target=f"{__name__}.processor:load_processor",
        summary="images of any size, in tiles and whole",
        architectures=frozenset({ARCHITECTURE}),
        needs=("transformers>=5.18", "PIL"),
    )
