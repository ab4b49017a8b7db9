"""Prompts with images for Gemma 3; runs in the API process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from PIL import Image
from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer

from sglang_plug import MediaArray, MediaLimits, MediaPrompt, MediaSource
from sglang_plug_models.common.checkpoint_components import from_checkpoint
from sglang_plug_models.common.images import as_array, put_images

PIXELS = "pixel_values"
LINES = 2
"""Number of newlines before and after each image."""
LONGEST_RUN = 32
"""Maximum number of newlines in one token."""


class GemmaProcessor:
    """Resizes every image to one size and puts it on lines of its own.

    The prompt is tokenized as if the newlines were in its text: newlines next to an image are merged with those that
    the image adds.

    Args:
        images: transformers' processor, as the checkpoint sets it up.
        config: the checkpoint's configuration.
        newlines: tokens of so many newlines.
        limits: of one request.
    """

    def __init__(self, images: Any, config: Any, newlines: Callable[[int], Sequence[int]], limits: MediaLimits) -> None:
        self._images, self._newlines, self._limits = images, newlines, limits
        self._begin, self._end = int(config.boi_token_index), int(config.eoi_token_index)
        self._placeholder, self._count = int(config.image_token_index), int(config.mm_tokens_per_image)
        runs = ((count, newlines(count)) for count in range(1, LONGEST_RUN + 1))
        self._runs: Mapping[int, int] = {tokens[0]: count for count, tokens in runs if len(tokens) == 1}

    def prompt(self, tokens: Sequence[int], images: Sequence[bytes]) -> MediaPrompt:
        """Build the prompt; see ``MediaProcessor``. The token that begins an image stands for it."""
        return put_images(self._framed(tokens), images, self._placeholder, self._limits, self._image_input)

    def _framed(self, tokens: Sequence[int]) -> list[int]:
        """Add newlines, a placeholder and an end for each token that begins an image."""
        result, run, due = list[int](), list[int](), 0

        def put_run() -> None:
            result.extend(self._newlines(due + sum(self._runs[token] for token in run)) if due else run)
            run.clear()

        for token in tokens:
            if token in self._runs:
                run.append(token)
                continue
            due += LINES * (token == self._begin)
            put_run()
            result += [self._begin, self._placeholder, self._end] if token == self._begin else [token]
            due = LINES * (token == self._begin)
        put_run()
        return result

    def _image_input(self, image: Image.Image) -> tuple[Sequence[int], dict[str, MediaArray]]:
        result = self._images(images=[image], return_tensors="np", do_pan_and_scan=False)[PIXELS].astype("float32")
        return [self._placeholder] * self._count, {PIXELS: as_array(result)}


def load_processor(source: MediaSource) -> GemmaProcessor:
    """Load the processor from ``preprocessor_config.json``. Raises ``ConfigError`` if there is none."""
    config, images, tokenizer = from_checkpoint(source, AutoConfig, AutoImageProcessor, AutoTokenizer)

    def newlines(count: int) -> list[int]:
        result: list[int] = tokenizer("\n" * count, add_special_tokens=False)["input_ids"]
        return result

    return GemmaProcessor(images, config, newlines, source.limits)
