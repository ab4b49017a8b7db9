"""A decoder that receives projected vision encoder states. Not a plugin; needs transformers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoModel

from sglang_plug import BuildEnv, ConfigError, ForwardBatch, Media, MediaArray, Model, SupportsImages, upload_array

from .blocks import CausalLM
from .vision_encoder import VisionEncoder, decoder_config, media_error, renamed

PREFIXES: Mapping[str, str] = {
    "model.vision_tower.": "vision_tower.",
    "model.multi_modal_projector.": "multi_modal_projector.",
    "model.language_model.": "language_model.model.",
    "lm_head.": "language_model.lm_head.",
}
HEAD = "language_model.lm_head.weight"
PIXELS = "pixel_values"
"""Name of an image's array ``[tiles, colours, height, width]``; most families have one tile."""


class ProjectedVL(Model, SupportsImages):
    """Vision encoder, projector and decoder; positions are token indices. A family defines the parts."""

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = CausalLM.packed
    ignored: ClassVar[tuple[str, ...]] = (*CausalLM.ignored, "embeddings.position_ids")
    decoders: ClassVar[Mapping[str, type[CausalLM]]]
    """Decoder classes by ``model_type`` of the checkpoint's ``text_config``."""
    prefixes: ClassVar[Mapping[str, str]] = PREFIXES
    """Name prefixes of newer checkpoint versions -> those of the first."""
    projector: Callable[[Any], nn.Module]
    """Constructor of the projector from the checkpoint's configuration."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(config, env)
        kind = config.text_config.model_type
        if kind not in self.decoders:
            known = ", ".join(self.decoders)
            raise ConfigError(
                f"{type(self).__name__} with a decoder of type {kind!r} is not supported, only {known}; "
                "--model-impl transformers-text may serve its text"
            )
        self.language_model = self.decoders[kind](decoder_config(config), env)
        self.vision_tower = VisionEncoder(AutoModel.from_config(config.vision_config).to(torch.get_default_dtype()))
        self.multi_modal_projector = VisionEncoder(type(self).projector(config))

    @classmethod
    def text_config(cls, config: Any) -> Any:
        """Return the decoder's configuration."""
        return config.text_config

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Return the hidden states of every new token, ``[T, hidden]``."""
        return self.language_model(batch)

    def head(self, hidden: Tensor) -> Tensor:
        """Compute logits ``[rows, vocabulary]``."""
        return self.language_model.head(hidden)

    def mrope_positions(self, media: Sequence[Media], length: int) -> None:
        """Return ``None``: positions are token indices. Raises ``RequestError`` for media of another processor."""
        for image in media:
            result = image.arrays.get(PIXELS)
            if result is None or len(result.shape) != 4:
                raise media_error(f"there are {', '.join(sorted(image.arrays)) or 'no arrays'}")
            if image.count != (count := self.num_image_tokens(image.arrays)):
                raise media_error(
                    f"an image of {result.shape[3]} x {result.shape[2]} has {count} tokens, not {image.count}"
                )

    def example(self, tokens: int) -> Media | None:
        """Return an image as large as any of at most ``tokens`` positions; ``None`` if all have more."""
        arrays = self.largest(tokens)
        count = self.num_image_tokens(arrays)
        return Media(start=0, count=count, digest=b"", arrays=arrays) if 0 < count <= tokens else None

    def largest(self, tokens: int) -> Mapping[str, MediaArray]:
        """Return arrays of the largest image of at most ``tokens`` positions, given a single image size."""
        side = int(self.config.vision_config.image_size)
        return {PIXELS: self.blank(side, side)}

    def blank(self, height: int, width: int, tiles: int = 1) -> MediaArray:
        """Return blank pixels, ``[tiles, colours, height, width]``."""
        shape = (tiles, int(self.config.vision_config.num_channels), height, width)
        return MediaArray("float32", shape, bytes(4 * math.prod(shape)))

    def num_image_tokens(self, arrays: Mapping[str, MediaArray]) -> int:
        """Return the number of tokens of an image from its arrays. Raises ``RequestError`` for an impossible size."""
        raise NotImplementedError(f"{type(self).__name__} does not define num_image_tokens(arrays)")

    def pixels(self, media: Sequence[Media]) -> Tensor:
        """Stack images of one size as ``[tiles, colours, height, width]`` in the vision encoder's device and dtype."""
        weight = next(self.vision_tower.parameters())
        return torch.cat([upload_array(image.arrays[PIXELS], weight.device) for image in media]).to(weight.dtype)

    def attention_layer_index(self, path: str) -> int | None:
        """Return the attention layer of a tensor name like ``Model``, with the names of any version."""
        return super().attention_layer_index(renamed(path, self.prefixes))

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load weights like ``Model``, with the names of any version."""
        inner = "" if hasattr(self.vision_tower.body, "vision_model") else "vision_model."
        headless = "generate" not in self.env.tasks
        named = (
            (renamed(name, self.prefixes).replace(f"vision_tower.{inner}", "vision_tower.", 1), tensor)
            for name, tensor in weights
        )
        super().load_weights((name, tensor) for name, tensor in named if not (headless and name == HEAD))


def square(pixels: MediaArray, side: int, tiles: int = 1) -> None:
    """Raise ``RequestError`` unless there are ``tiles`` tiles with ``side`` rows and columns."""
    if pixels.shape[0] != tiles or tuple(pixels.shape[2:]) != (side, side):
        raise media_error(
            f"an image has {pixels.shape[0]} tiles of {pixels.shape[3]} x {pixels.shape[2]} pixels; this model expects "
            f"{tiles} of {side} x {side}"
        )
