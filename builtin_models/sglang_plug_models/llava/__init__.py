"""LLaVA 1.5, LLaVA-NeXT and LLaVA-OneVision: a decoder with vision encoder states."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import MediaProcessorSpec, ModelSpec, hookimpl

ONE_SIZE = {
    "LlavaForConditionalGeneration": ("model:Llava", "LLaVA 1.5 with a Llama, Mistral, Qwen, Phi-3 or Granite decoder"),
}
ANY_SIZE = {
    "LlavaNextForConditionalGeneration": ("anyres:LlavaNext", "LLaVA-NeXT (1.6) with images of any resolution"),
    "LlavaOnevisionForConditionalGeneration": ("anyres:LlavaOnevision", "LLaVA-OneVision with images"),
}
"""Target and summary of each architecture."""


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    for name, (target, summary) in (ONE_SIZE | ANY_SIZE).items():
        yield ModelSpec(
            name=name,
            target=f"{__name__}.{target}",
            summary=summary,
            inputs=frozenset({"text", "image"}),
            parallel=True,
            needs=("transformers>=5.18",),
        )


@hookimpl
def register_media_processors() -> Iterator[MediaProcessorSpec]:
    yield MediaProcessorSpec(
        name="llava",
        target=f"{__name__}.processor:load_processor",
        summary="images of one size",
        architectures=frozenset(ONE_SIZE),
        needs=("transformers>=5.18", "PIL"),
    )
    yield MediaProcessorSpec(
        name="llava-tiles",
        target=f"{__name__}.processor:load_tiles_processor",
        summary="images of any resolution, whole and in tiles",
        architectures=frozenset(ANY_SIZE),
        needs=("transformers>=5.18", "PIL"),
    )
