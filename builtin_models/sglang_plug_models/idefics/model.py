"""Idefics 3 (Laurençon et al., 2024) and SmolVLM (Marafioti et al., 2025): tiles of an image and the whole of it.

Between tiles stand tokens that name them, whose embeddings stay. The part that reads images is transformers' own.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers.models.idefics3.modeling_idefics3 import Idefics3Connector
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMConnector

from sglang_plug import BuildEnv, Media, MediaArray
from sglang_plug.transfer import upload_array
from sglang_plug_models.blocks import CausalLM
from sglang_plug_models.llama.model import Llama
from sglang_plug_models.mistral.model import Mistral
from sglang_plug_models.projected import PIXELS, Projected, square
from sglang_plug_models.qwen.qwen2 import Qwen2
from sglang_plug_models.qwen.qwen3 import Qwen3
from sglang_plug_models.towers import wrong_media

TOKENS = "tokens"
"""Name of the array ``[count]`` with the tokens of an image's places: placeholders, and names of tiles."""


class Idefics3(Projected):
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

    def places(self, arrays: Mapping[str, MediaArray]) -> int:
        """The same for each tile, and one for each token between them."""
        pixels, tokens = arrays[PIXELS], arrays.get(TOKENS)
        square(pixels, self.config.vision_config.image_size, pixels.shape[0])
        if tokens is None or len(tokens.shape) != 1:
            raise wrong_media("the tokens of one are missing")
        shown = int((self._tokens(tokens) == self.config.image_token_id).sum())
        if shown != pixels.shape[0] * self.of_tile:
            raise wrong_media(f"one has {pixels.shape[0]} tiles and {shown} places for them")
        return tokens.shape[0]

    def largest(self, tokens: int) -> Mapping[str, MediaArray]:
        """Of as many tiles as there may be; of one if that is too many already."""
        tiles, side = max(1, tokens // self.of_tile), self.config.vision_config.image_size
        count = tiles * self.of_tile
        placeholders = array("q", [self.config.image_token_id] * count).tobytes()
        return {PIXELS: self.blank(side, side, tiles), TOKENS: MediaArray("int64", (count,), placeholders)}

    def see(self, media: Sequence[Media]) -> Sequence[Tensor]:
        """All tiles through tower and projector, at once: ``[count, hidden]`` for each image."""
        states = self.vision_tower.body(self.pixels(media)).last_hidden_state
        found = self.multi_modal_projector.body(states)
        tiles = found.split_with_sizes([one.arrays[PIXELS].shape[0] for one in media])
        return [self._among_names(one, own) for one, own in zip(media, tiles, strict=True)]

    def _among_names(self, one: Media, tiles: Tensor) -> Tensor:
        tokens = self._tokens(one.arrays[TOKENS])
        rows = (tokens == self.config.image_token_id).nonzero().flatten().to(tiles.device)
        embedded: Tensor = self.language_model.model.embed(tokens.to(tiles.device))
        return embedded.index_copy(0, rows, tiles.flatten(0, 1).to(embedded.dtype))

    def _tokens(self, tokens: MediaArray) -> Tensor:
        """On the host."""
        return upload_array(tokens, torch.device("cpu"))


class SmolVLM(Idefics3):
    """SmolVLM and SmolVLM 2."""

    projector = SmolVLMConnector
