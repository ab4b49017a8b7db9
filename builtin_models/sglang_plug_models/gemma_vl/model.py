"""Gemma 3 with images (Gemma team, 2025): vision encoder states, averaged over squares of patches and projected.

The tokens of an image attend to each other bidirectionally; all others attend causally. The vision encoder is
transformers' own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor
from transformers.models.gemma3.modeling_gemma3 import Gemma3MultiModalProjector

from sglang_plug import Media, MediaArray
from sglang_plug_models.common.blocks import CausalLM
from sglang_plug_models.common.vision_projector import PIXELS, ProjectedVL, square
from sglang_plug_models.gemma.model import Gemma3


class Gemma3VL(ProjectedVL):
    """Gemma 3 with a SigLIP vision encoder."""

    decoders: ClassVar[Mapping[str, type[CausalLM]]] = {"gemma3_text": Gemma3}
    projector = Gemma3MultiModalProjector
    bidirectional_images: ClassVar[bool] = True

    def num_image_tokens(self, arrays: Mapping[str, MediaArray]) -> int:
        """Return the number of tokens, which is the same for all images."""
        square(arrays[PIXELS], self.config.vision_config.image_size)
        return int(self.config.mm_tokens_per_image)

    def encode_images(self, media: Sequence[Media]) -> Sequence[Tensor]:
        """Encode images by the vision encoder and projector at once: ``[count, hidden]`` for each."""
        states = self.vision_tower.body(self.pixels(media)).last_hidden_state
        return self.multi_modal_projector.body(states).unbind()
