"""A plugin with models that record which images they encode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from sglang_plug import Media, ModelSpec, hookimpl
from sglang_plug_models.gemma_vl.model import Gemma3VL
from sglang_plug_models.mistral_vl.model import Mistral3
from sglang_plug_models.qwen_vl.model import Qwen3VL
from tests.fake_cuda.device.tensors import DeviceTensor


class CountedImages:
    """A base class that records the calls of ``encode_images``."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.encoded: list[tuple[int, bool]] = []
        """The tokens of each call, and whether all results are on the device."""

    def encode_images(self, media: Sequence[Media]) -> Sequence[Tensor]:
        """Encode images, and record the call."""
        states: Sequence[Tensor] = super().encode_images(media)  # type: ignore[misc]
        on_device = all(isinstance(state, DeviceTensor) for state in states)
        self.encoded.append((sum(image.count for image in media), on_device))
        return states


class CountedGemma3(CountedImages, Gemma3VL):
    """Gemma 3 that records its encoded images."""


class CountedMistral3(CountedImages, Mistral3):
    """Mistral Small 3 that records its encoded images."""


class CountedQwen3VL(CountedImages, Qwen3VL):
    """Qwen3-VL that records its encoded images."""


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    for name, model in (
        ("Gemma3ForConditionalGeneration", CountedGemma3),
        ("Mistral3ForConditionalGeneration", CountedMistral3),
        ("Qwen3VLForConditionalGeneration", CountedQwen3VL),
    ):
        yield ModelSpec(name=name, target=f"{__name__}:{model.__name__}", inputs=frozenset({"text", "image"}))
