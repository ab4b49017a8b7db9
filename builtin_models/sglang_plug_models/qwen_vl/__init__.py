"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: Qwen2 and Qwen3 with images."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import MediaProcessorSpec, ModelSpec, hookimpl

INPUTS = frozenset({"text", "image"})
ARCHITECTURES = {
    "Qwen2VLForConditionalGeneration": ("Qwen2VL", "Qwen2-VL"),
    "Qwen2_5_VLForConditionalGeneration": ("Qwen25VL", "Qwen2.5-VL"),
    "Qwen3VLForConditionalGeneration": ("Qwen3VL", "Qwen3-VL"),
    "Qwen3VLMoeForConditionalGeneration": ("Qwen3VLMoe", "Qwen3-VL with experts"),
}
"""Class and summary of each architecture."""


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    for name, (target, summary) in ARCHITECTURES.items():
        yield ModelSpec(
            name=name,
            target=f"{__name__}.model:{target}",
            summary=summary,
            inputs=INPUTS,
            parallel=True,
            needs=("transformers>=5.18",),
        )


@hookimpl
def register_media_processors() -> Iterator[MediaProcessorSpec]:
    yield MediaProcessorSpec(
        name="qwen-vl",
        target=f"{__name__}.processor:load_processor",
        summary="images of any size, cut into patches",
        architectures=frozenset(ARCHITECTURES),
        needs=("transformers>=5.18", "PIL"),
    )
