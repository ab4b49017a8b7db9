"""Qwen3-Next and Qwen3.5: most layers keep a state instead of keys and values."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import MediaProcessorSpec, ModelSpec, hookimpl

MODELS = {
    "Qwen3NextForCausalLM": ("Qwen3Next", "Qwen3-Next"),
    "Qwen3_5ForCausalLM": ("Qwen35", "Qwen3.5, text only"),
    "Qwen3_5MoeForCausalLM": ("Qwen35Moe", "Qwen3.5 with experts, text only"),
}
VISION_MODELS = {
    "Qwen3_5ForConditionalGeneration": ("Qwen35VL", "Qwen3.5"),
    "Qwen3_5MoeForConditionalGeneration": ("Qwen35MoeVL", "Qwen3.5 with experts"),
}
"""Class and summary of each vision-language architecture."""
NEEDS = ("transformers>=5.18",)


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    for name, (target, summary) in MODELS.items():
        yield ModelSpec(name=name, target=f"{__name__}.model:{target}", summary=summary)
    for name, (target, summary) in VISION_MODELS.items():
        yield ModelSpec(
            name=name,
            target=f"{__name__}.vision:{target}",
            summary=summary,
            inputs=frozenset({"text", "image"}),
            needs=NEEDS,
        )


@hookimpl
def register_media_processors() -> Iterator[MediaProcessorSpec]:
    yield MediaProcessorSpec(
        name="qwen35-vl",
        target="sglang_plug_models.qwen_vl.processor:load_processor",
        summary="images of any size, cut into patches",
        architectures=frozenset(VISION_MODELS),
        needs=(*NEEDS, "PIL"),
    )
