"""Idefics 3 (Laurençon et al., 2024) and SmolVLM (Marafioti et al., 2025): tiles of an image and the whole image.

Tokens between the tiles name them and keep their embeddings. The vision encoder is transformers' own.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers.models.idefics3.modeling_idefics3 import Idefics3Connector
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMConnector

from sglang_plug import BuildEnv, Media, MediaArray, upload_array
from sglang_plug_models.common.blocks import CausalLM
from sglang_plug_models.common.vision_encoder import media_error
from sglang_plug_models.common.vision_projector import PIXELS, ProjectedVL, square
from sglang_plug_models.llama.model import Llama
from sglang_plug_models.mistral.model import Mistral
from sglang_plug_models.qwen.qwen2 import Qwen2
from sglang_plug_models.qwen.qwen3 import Qwen3

TOKENS = "tokens"
"""Name of the array ``[count]`` with the tokens of an image: placeholders, and names of tiles."""


class Idefics3(ProjectedVL):
    """Idefics 3."""

    decoders: ClassVar[Mapping[str, type[CausalLM]]] = {
        "llama": Llama,
        "mistral": Mistral,
        "qwen2": Qwen2,
        "qwen3": Qwen3,
    }
    prefixes: ClassVar[Mapping[str, str]] = {
        "model.vision_model.": "vision_tower.",
        "model.connector.": "multi_modal_projector.",
        "model.text_model.": "language_model.model.",
        "lm_head.": "language_model.lm_head.",
    }
    projector = Idefics3Connector

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(config, env)
        self.of_tile = int((config.vision_config.image_size // config.vision_config.patch_size) ** 2)
        self.of_tile //= int(config.scale_factor**2)

    def num_image_tokens(self, arrays: Mapping[str, MediaArray]) -> int:
        """Return the number of tokens: the same for each tile, and one for each token between them."""
        pixels, tokens = arrays[PIXELS], arrays.get(TOKENS)
        square(pixels, self.config.vision_config.image_size, pixels.shape[0])
        if tokens is None or len(tokens.shape) != 1:
            raise media_error("an image has no tokens")
        placeholders = int((self._tokens(tokens) == self.config.image_token_id).sum())
        if placeholders != pixels.shape[0] * self.of_tile:
            raise media_error(f"an image has {pixels.shape[0]} tiles and {placeholders} placeholders for them")
        return tokens.shape[0]

    def largest(self, tokens: int) -> Mapping[str, MediaArray]:
        """Return an image with the maximum number of tiles, or one tile if that is too many."""
        tiles, side = max(1, tokens // self.of_tile), self.config.vision_config.image_size
        count = tiles * self.of_tile
        placeholders = array("q", [self.config.image_token_id] * count).tobytes()
        return {PIXELS: self.blank(side, side, tiles), TOKENS: MediaArray("int64", (count,), placeholders)}

    def encode_images(self, media: Sequence[Media]) -> Sequence[Tensor]:
        """Encode tiles by the vision encoder and projector at once: ``[count, hidden]`` for each image."""
        states = self.vision_tower.body(self.pixels(media)).last_hidden_state
        result = self.multi_modal_projector.body(states)
        tiles = result.split_with_sizes([image.arrays[PIXELS].shape[0] for image in media])
        return [self._among_names(item, own) for item, own in zip(media, tiles, strict=True)]

    def _among_names(self, image: Media, tiles: Tensor) -> Tensor:
        tokens = self._tokens(image.arrays[TOKENS])
        rows = (tokens == self.config.image_token_id).nonzero().flatten().to(tiles.device)
        embedded: Tensor = self.language_model.model.embed(tokens.to(tiles.device))
        return embedded.index_copy(0, rows, tiles.flatten(0, 1).to(embedded.dtype))

    def _tokens(self, tokens: MediaArray) -> Tensor:
        """Return the tokens on the host."""
        return upload_array(tokens, torch.device("cpu"))


class SmolVLM(Idefics3):
    """SmolVLM and SmolVLM 2."""

    projector = SmolVLMConnector
