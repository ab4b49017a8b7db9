"""Prompts with images for Mistral's vision-language models; runs in the API process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image
from transformers import AutoConfig, AutoTokenizer
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

from sglang_plug import ConfigError, MediaArray, MediaLimits, MediaPrompt, MediaSource
from sglang_plug_models.common.checkpoint_components import from_checkpoint, read_json_file
from sglang_plug_models.common.images import as_array, put_images

PIXELS, ENDS = "pixel_values", "row_ends"
BREAK, END = "[IMG_BREAK]", "[IMG_END]"
"""Tokens that end a row and an image by default."""


class PixtralProcessor:
    """Resizes images to whole squares of patches.

    Args:
        images: transformers' processor, as the checkpoint sets it up.
        config: the checkpoint's configuration.
        row_end: the token after each row but the last.
        image_end: the token after the last.
        limits: of one request.
    """

    def __init__(self, images: Any, config: Any, row_end: int, image_end: int, limits: MediaLimits) -> None:
        self._images, self._limits = images, limits
        self._row_end, self._image_end = row_end, image_end
        self._placeholder = int(config.image_token_index)
        self._side = int(config.vision_config.patch_size) * int(config.spatial_merge_size)

    def prompt(self, tokens: Sequence[int], images: Sequence[bytes]) -> MediaPrompt:
        """Build the prompt of tokens and images; see ``MediaProcessor``."""
        return put_images(tokens, images, self._placeholder, self._limits, self._image_input)

    def _image_input(self, image: Image.Image) -> tuple[Sequence[int], dict[str, MediaArray]]:
        result = self._images(images=[image], return_tensors="np", patch_size=self._side)[PIXELS].astype("float32")
        rows, columns = (size // self._side for size in result.shape[2:])
        ends = [self._row_end] * (rows - 1) + [self._image_end]
        tokens = [token for end in ends for token in (*[self._placeholder] * columns, end)]
        return tokens, {PIXELS: as_array(result), ENDS: as_array(np.array(ends, dtype="int64"))}


def load_processor(source: MediaSource) -> PixtralProcessor:
    """Load the processor from ``preprocessor_config.json``. Raises ``ConfigError`` if there is none."""
    config, images, tokenizer = from_checkpoint(source, AutoConfig, PixtralImageProcessorPil, AutoTokenizer)
    names = read_json_file(source, "processor_config.json")
    ends = [str(names.get(name) or usual) for name, usual in (("image_break_token", BREAK), ("image_end_token", END))]
    known = tokenizer.get_vocab()
    if missing := [name for name in ends if name not in known]:
        raise ConfigError(f"{source.path}: the tokenizer has no {', '.join(missing)}, which end rows of images")
    return PixtralProcessor(images, config, known[ends[0]], known[ends[1]], source.limits)
