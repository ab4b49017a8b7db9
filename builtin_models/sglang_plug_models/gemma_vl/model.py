"""Gemma 3 with images (Gemma team, 2025): the tower's states, averaged over squares of patches and projected.

The places of an image see each other, also later ones; everything else sees what came before. The part that reads
images is transformers' own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor
from transformers.models.gemma3.modeling_gemma3 import Gemma3MultiModalProjector

from sglang_plug import Media, MediaArray
from sglang_plug_models.blocks import CausalLM
from sglang_plug_models.gemma.model import Gemma3
from sglang_plug_models.projected import PIXELS, Projected, square


class Gemma3VL(Projected):
    """Gemma 3 with a SigLIP tower."""

    decoders: ClassVar[Mapping[str, type[CausalLM]]] = {"gemma3_text": Gemma3}
    projector = Gemma3MultiModalProjector
    sees_whole: ClassVar[bool] = True

    def places(self, arrays: Mapping[str, MediaArray]) -> int:
        """The same for all."""
        square(arrays[PIXELS], self.config.vision_config.image_size)
        return int(self.config.mm_tokens_per_image)

    def see(self, media: Sequence[Media]) -> Sequence[Tensor]:
        """All images through tower and projector, at once: ``[count, hidden]`` for each."""
        states = self.vision_tower.body(self.pixels(media)).last_hidden_state
        return self.multi_modal_projector.body(states).unbind()
