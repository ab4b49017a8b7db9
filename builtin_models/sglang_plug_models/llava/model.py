"""LLaVA (Liu et al., 2023): projected vision encoder states replace embeddings.

The vision encoder is transformers' own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers.models.llava.modeling_llava import LlavaMultiModalProjector

from sglang_plug import BuildEnv, Media, MediaArray
from sglang_plug_models.common.blocks import CausalLM
from sglang_plug_models.common.vision_projector import PIXELS, ProjectedVL, square
from sglang_plug_models.granite.model import Granite
from sglang_plug_models.llama.model import Llama
from sglang_plug_models.mistral.model import Mistral
from sglang_plug_models.phi.model import Phi3
from sglang_plug_models.qwen.qwen2 import Qwen2
from sglang_plug_models.qwen.qwen3 import Qwen3


class Llava(ProjectedVL):
    """LLaVA 1.5 and related models."""

    decoders: ClassVar[Mapping[str, type[CausalLM]]] = {
        "llama": Llama,
        "mistral": Mistral,
        "qwen2": Qwen2,
        "qwen3": Qwen3,
        "granite": Granite,
        "phi3": Phi3,
    }
    projector = LlavaMultiModalProjector

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(config, env)
        layers = config.vision_feature_layer
        self.layers: list[int] = [layers] if isinstance(layers, int) else list(layers)
        self.skipped = 1 if config.vision_feature_select_strategy == "default" else 0
        self.extra = int(config.vision_config.model_type.startswith("clip"))  # the class token

    def num_image_tokens(self, arrays: Mapping[str, MediaArray]) -> int:
        """Return one token for each patch, and one for the class token if it is kept."""
        vision = self.config.vision_config
        square(arrays[PIXELS], vision.image_size)
        return int((vision.image_size // vision.patch_size) ** 2) + self.extra - self.skipped

    def encode_images(self, media: Sequence[Media]) -> Sequence[Tensor]:
        """Encode images by the vision encoder and projector at once: ``[count, hidden]`` for each."""
        return self.projected(self.pixels(media)).unbind()

    def projected(self, pixels: Tensor) -> Tensor:
        """Encode and project ``[tiles, colours, height, width]`` to ``[tiles, patches, hidden]``."""
        states = self.vision_tower.body(pixels, output_hidden_states=True).hidden_states
        chosen = torch.cat([states[layer][:, self.skipped :] for layer in self.layers], dim=-1)
        result: Tensor = self.multi_modal_projector.body(chosen)
        return result
