"""LLaVA (Liu et al., 2023): states of a vision transformer, projected, stand in the place of embeddings.

Positions are the tokens' places. The part that reads images is transformers' own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import AutoModel
from transformers.models.llava.modeling_llava import LlavaMultiModalProjector

from sglang_plug import BuildEnv, ConfigError, ForwardBatch, Media, Model, Seeing
from sglang_plug.transfer import upload_array
from sglang_plug_models.blocks import CausalLM
from sglang_plug_models.llama.model import Llama
from sglang_plug_models.mistral.model import Mistral
from sglang_plug_models.qwen.qwen2 import Qwen2
from sglang_plug_models.towers import Tower, decoder_config, renamed, wrong_media

DECODERS: Mapping[str, type[CausalLM]] = {"llama": Llama, "mistral": Mistral, "qwen2": Qwen2}
PREFIXES: Mapping[str, str] = {
    "model.vision_tower.": "vision_tower.",
    "model.multi_modal_projector.": "multi_modal_projector.",
    "model.language_model.": "language_model.model.",
    "lm_head.": "language_model.lm_head.",
}
"""How checkpoints of newer versions begin names -> how those of the first did."""
PIXELS = "pixel_values"


class Llava(Model, Seeing):
    """LLaVA 1.5 and its kin."""

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = CausalLM.packed
    ignored: ClassVar[tuple[str, ...]] = (*CausalLM.ignored, "embeddings.position_ids")

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(config, env)
        kind = config.text_config.model_type
        if kind not in DECODERS:
            raise ConfigError(f"LLaVA with a decoder of type {kind!r} is not supported, only {', '.join(DECODERS)}")
        layers = config.vision_feature_layer
        self.layers: list[int] = [layers] if isinstance(layers, int) else list(layers)
        self.skipped = 1 if config.vision_feature_select_strategy == "default" else 0
        self.language_model = DECODERS[kind](decoder_config(config), env)
        body = AutoModel.from_config(config.vision_config).to(torch.get_default_dtype())
        self.vision_tower = Tower(body)
        self.multi_modal_projector = Tower(LlavaMultiModalProjector(config))

    @classmethod
    def text_config(cls, config: Any) -> Any:
        """Of the decoder."""
        return config.text_config

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Hidden states of every new token, ``[T, hidden]``."""
        return self.language_model(batch)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits ``[rows, vocabulary]``."""
        return self.language_model.head(hidden)

    def see(self, media: Sequence[Media]) -> Sequence[Tensor]:
        """All images through tower and projector, at once: ``[count, hidden]`` for each."""
        weight = next(self.vision_tower.parameters())
        pixels = torch.cat([upload_array(one.arrays[PIXELS], weight.device) for one in media]).to(weight.dtype)
        states = self.vision_tower.body(pixels, output_hidden_states=True).hidden_states
        chosen = torch.cat([states[layer][:, self.skipped :] for layer in self.layers], dim=-1)
        return self.multi_modal_projector.body(chosen).unbind()

    def coordinates(self, media: Sequence[Media], length: int) -> None:
        """Each token's place. Raises ``RequestError`` for images of another size than the tower's."""
        for one in media:
            found = one.arrays.get(PIXELS)
            if found is None or len(found.shape) != 4 or found.shape[0] != 1:
                raise wrong_media(f"there are {', '.join(sorted(one.arrays)) or 'no arrays'}")

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """As ``Model``, whichever version wrote the names."""
        inner = "" if hasattr(self.vision_tower.body, "vision_model") else "vision_model."
        super().load_weights(
            (renamed(name, PREFIXES).replace(f"vision_tower.{inner}", "vision_tower.", 1), tensor)
            for name, tensor in weights
        )
