"""A decoder that is given projected states of a vision transformer. Not a plugin; needs transformers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoModel

from sglang_plug import BuildEnv, ConfigError, ForwardBatch, Media, MediaArray, Model, Seeing
from sglang_plug.transfer import upload_array
from sglang_plug_models.blocks import CausalLM
from sglang_plug_models.towers import Tower, decoder_config, renamed, wrong_media

PREFIXES: Mapping[str, str] = {
    "model.vision_tower.": "vision_tower.",
    "model.multi_modal_projector.": "multi_modal_projector.",
    "model.language_model.": "language_model.model.",
    "lm_head.": "language_model.lm_head.",
}
HEAD = "language_model.lm_head.weight"
PIXELS = "pixel_values"
"""Name of an image's array ``[tiles, colours, height, width]``; most families have one tile."""


class Projected(Model, Seeing):
    """Tower, projector and decoder; positions are the tokens' places. A family says which they are."""

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = CausalLM.packed
    ignored: ClassVar[tuple[str, ...]] = (*CausalLM.ignored, "embeddings.position_ids")
    decoders: ClassVar[Mapping[str, type[CausalLM]]]
    """By ``model_type`` of the checkpoint's ``text_config``."""
    prefixes: ClassVar[Mapping[str, str]] = PREFIXES
    """How checkpoints of newer versions begin names -> how those of the first did."""
    projector: Callable[[Any], nn.Module]
    """From the checkpoint's configuration."""

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
        self.vision_tower = Tower(AutoModel.from_config(config.vision_config).to(torch.get_default_dtype()))
        self.multi_modal_projector = Tower(type(self).projector(config))

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

    def controls(self) -> Mapping[str, Callable[..., Any]]:
        """The decoder's."""
        return self.language_model.controls()

    def coordinates(self, media: Sequence[Media], length: int) -> None:
        """Each token's place. Raises ``RequestError`` for media of another processor."""
        for one in media:
            found = one.arrays.get(PIXELS)
            if found is None or len(found.shape) != 4:
                raise wrong_media(f"there are {', '.join(sorted(one.arrays)) or 'no arrays'}")
            if one.count != (places := self.places(one.arrays)):
                raise wrong_media(
                    f"an image of {found.shape[3]} x {found.shape[2]} has {places} places, not {one.count}"
                )

    def example(self, tokens: int) -> Media | None:
        """An image as large as any of at most ``tokens`` places; ``None`` if all have more."""
        arrays = self.largest(tokens)
        count = self.places(arrays)
        return Media(start=0, count=count, digest=b"", arrays=arrays) if 0 < count <= tokens else None

    def largest(self, tokens: int) -> Mapping[str, MediaArray]:
        """Arrays of the largest image of at most ``tokens`` places: of the one size there is."""
        side = int(self.config.vision_config.image_size)
        return {PIXELS: self.blank(side, side)}

    def blank(self, height: int, width: int, tiles: int = 1) -> MediaArray:
        """Pixels without a picture, ``[tiles, colours, height, width]``."""
        shape = (tiles, int(self.config.vision_config.num_channels), height, width)
        return MediaArray("float32", shape, bytes(4 * math.prod(shape)))

    def places(self, arrays: Mapping[str, MediaArray]) -> int:
        """How many tokens an image takes, of its arrays. Raises ``RequestError`` for a size that is none."""
        raise NotImplementedError(f"{type(self).__name__} does not define places(arrays)")

    def pixels(self, media: Sequence[Media]) -> Tensor:
        """``[tiles, colours, height, width]`` of images of one size, where the tower is and in its dtype."""
        weight = next(self.vision_tower.parameters())
        return torch.cat([upload_array(one.arrays[PIXELS], weight.device) for one in media]).to(weight.dtype)

    def attending_layer(self, path: str) -> int | None:
        """As ``Model``, whichever version wrote the name."""
        return super().attending_layer(renamed(path, self.prefixes))

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """As ``Model``, whichever version wrote the names."""
        inner = "" if hasattr(self.vision_tower.body, "vision_model") else "vision_model."
        headless = "generate" not in self.env.tasks
        named = (
            (renamed(name, self.prefixes).replace(f"vision_tower.{inner}", "vision_tower.", 1), tensor)
            for name, tensor in weights
        )
        super().load_weights(one for one in named if not (headless and one[0] == HEAD))


def square(pixels: MediaArray, side: int, tiles: int = 1) -> None:
    """Raises ``RequestError`` unless there are so many tiles with ``side`` rows and columns."""
    if pixels.shape[0] != tiles or tuple(pixels.shape[2:]) != (side, side):
        raise wrong_media(
            f"one has {pixels.shape[3]} x {pixels.shape[2]} pixels, {pixels.shape[0]} times, and this model's have "
            f"{side} x {side}, {tiles} times"
        )
