"""Qwen2-VL and Qwen2.5-VL: Qwen2 with images."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import Facts, MediaProcessorSpec, ModelSpec, hookimpl

INPUTS = frozenset({"text", "image"})
ARCHITECTURES = ("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration")


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    for name, target, summary in zip(ARCHITECTURES, ("Qwen2VL", "Qwen25VL"), ("Qwen2-VL", "Qwen2.5-VL"), strict=True):
        yield ModelSpec(
            name=name, target=f"{__name__}.model:{target}", summary=summary, inputs=INPUTS, needs=("transformers",)
        )


@hookimpl
def register_media_processors() -> Iterator[MediaProcessorSpec]:
    yield MediaProcessorSpec(
        name="qwen-vl",
        target=f"{__name__}.processor:load_processor",
        summary="images of any size, cut into patches",
        needs=("transformers", "PIL"),
    )


@hookimpl(trylast=True)
def choose_component(kind: str, facts: Facts) -> str | None:
    if kind != "media-processor":
        return None
    names = getattr(facts.model, "architectures", None) or ("",)
    return "qwen-vl" if names[0] in ARCHITECTURES else None
