"""Prompts with images for InternVL; runs in the API process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image
from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer

from sglang_plug import ConfigError, MediaArray, MediaLimits, MediaPrompt, MediaSource
from sglang_plug_models.common.checkpoint_components import from_checkpoint
from sglang_plug_models.common.images import as_array, put_images

PIXELS = "pixel_values"
ENDS = {"start_image_token": "<img>", "end_image_token": "</img>"}
"""Tokens around an image: the tokenizer's attribute and its default."""


class TilesProcessor:
    """Splits images into tiles, adds the whole image if there are several, and puts a token before and after.

    Args:
        images: transformers' processor, as the checkpoint sets it up.
        config: the checkpoint's configuration.
        ends: the tokens around an image.
        limits: of one request.
    """

    def __init__(self, images: Any, config: Any, ends: tuple[int, int], limits: MediaLimits) -> None:
        self._images, self._limits = images, limits
        self._begin, self._end = ends
        self._placeholder = int(config.image_token_id)
        vision, joined = config.vision_config, round(1 / config.downsample_ratio)
        self._count = int((vision.image_size[0] // vision.patch_size[0] // joined) ** 2)

    def prompt(self, tokens: Sequence[int], images: Sequence[bytes]) -> MediaPrompt:
        """Build the prompt of tokens and images; see ``MediaProcessor``."""
        framed = [
            framed_token
            for token in tokens
            for framed_token in ((self._begin, token, self._end) if token == self._placeholder else (token,))
        ]
        return put_images(framed, images, self._placeholder, self._limits, self._image_input)

    def _image_input(self, image: Image.Image) -> tuple[int, dict[str, MediaArray]]:
        result = self._images(images=[image], return_tensors="np", crop_to_patches=True)[PIXELS].astype("float32")
        return len(result) * self._count, {PIXELS: as_array(result)}


def load_processor(source: MediaSource) -> TilesProcessor:
    """Load the processor from ``preprocessor_config.json``. Raises ``ConfigError`` if there is none."""
    config, images, tokenizer = from_checkpoint(source, AutoConfig, AutoImageProcessor, AutoTokenizer)
    names = [str(getattr(tokenizer, name, None) or usual) for name, usual in ENDS.items()]
    known = tokenizer.get_vocab()
    if missing := [name for name in names if name not in known]:
        raise ConfigError(f"{source.path}: the tokenizer has no {', '.join(missing)}, which enclose images")
    return TilesProcessor(images, config, (known[names[0]], known[names[1]]), source.limits)
