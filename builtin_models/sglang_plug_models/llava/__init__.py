"""LLaVA: a decoder that is given what a vision transformer sees."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import Facts, MediaProcessorSpec, ModelSpec, hookimpl

ARCHITECTURE = "LlavaForConditionalGeneration"


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(
        name=ARCHITECTURE,
        target=f"{__name__}.model:Llava",
        summary="LLaVA 1.5 with a Llama, Mistral or Qwen2 decoder",
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
        needs=("transformers>=5.18", "PIL"),
    )


@hookimpl(trylast=True)
def choose_component(kind: str, facts: Facts) -> str | None:
    names = getattr(facts.model, "architectures", None) or ("",)
    return "llava" if kind == "media-processor" and names[0] == ARCHITECTURE else None
