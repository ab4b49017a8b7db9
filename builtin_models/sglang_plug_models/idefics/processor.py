"""Prompts with images for Idefics 3 and SmolVLM; runs in the API process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image
from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer

from sglang_plug import ConfigError, MediaArray, MediaLimits, MediaPrompt, MediaSource
from sglang_plug_models.common.checkpoint_components import from_checkpoint
from sglang_plug_models.common.images import as_array, put_images

PIXELS, TOKENS = "pixel_values", "tokens"
NAMES = {"fake_image_token": "<fake_token_around_image>", "global_image_token": "<global-img>"}
"""Tokens before each tile and after the last, and of the whole image: the tokenizer's attribute and its default."""


class NamedTilesProcessor:
    """Splits images into tiles, each after its name, the whole image last.

    Args:
        images: transformers' processor, as the checkpoint sets it up.
        config: the checkpoint's configuration.
        encode: tokens of a text in which ``placeholder`` stands for a part of a tile.
        texts: the placeholder, what stands around tiles, and what the whole image is called.
        limits: of one request.
    """

    def __init__(
        self, images: Any, config: Any, encode: Callable[[str], list[int]], texts: Sequence[str], limits: MediaLimits
    ) -> None:
        self._images, self._encode, self._limits = images, encode, limits
        self._id = int(config.image_token_id)
        self._placeholder, self._frame, self._whole = texts
        vision = config.vision_config
        self._count = (vision.image_size // vision.patch_size) ** 2 // config.scale_factor**2

    def prompt(self, tokens: Sequence[int], images: Sequence[bytes]) -> MediaPrompt:
        """Build the prompt of tokens and images; see ``MediaProcessor``."""
        return put_images(tokens, images, self._id, self._limits, self._image_input)

    def _image_input(self, image: Image.Image) -> tuple[Sequence[int], dict[str, MediaArray]]:
        result = self._images(images=[[image]], return_tensors="np", return_row_col_info=True)
        tokens = self._encode(self._named(result["rows"][0][0], result["cols"][0][0]))
        arrays = {
            PIXELS: as_array(result[PIXELS][0].astype("float32")),
            TOKENS: as_array(np.array(tokens, dtype="int64")),
        }
        return tokens, arrays

    def _named(self, rows: int, columns: int) -> str:
        """Return the text of an image with this many rows and columns of tiles, none if it is not split."""
        placeholders = self._placeholder * self._count
        lines = (
            "".join(f"{self._frame}<row_{row}_col_{column}>{placeholders}" for column in range(1, columns + 1)) + "\n"
            for row in range(1, rows + 1)
        )
        return "".join(lines) + ("\n" if rows else "") + f"{self._frame}{self._whole}{placeholders}{self._frame}"


def load_processor(source: MediaSource) -> NamedTilesProcessor:
    """Load the processor from ``preprocessor_config.json``. Raises ``ConfigError`` if there is none."""
    config, images, tokenizer = from_checkpoint(source, AutoConfig, AutoImageProcessor, AutoTokenizer)
    names = [str(getattr(tokenizer, name, None) or usual) for name, usual in NAMES.items()]
    if names[0] not in tokenizer.get_vocab():
        raise ConfigError(f"{source.path}: the tokenizer has no {names[0]}, which encloses images")

    def encode(text: str) -> list[int]:
        result: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return result

    placeholder = tokenizer.convert_ids_to_tokens(int(config.image_token_id))
    return NamedTilesProcessor(images, config, encode, (placeholder, *names), source.limits)
