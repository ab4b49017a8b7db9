"""From tokens and images to prompts, for LLaVA. Lives in the API process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image
from transformers import AutoConfig, AutoImageProcessor

from sglang_plug import ConfigError, MediaArray, MediaLimits, MediaPrompt, MediaSource
from sglang_plug_models.pictures import as_array, put_images

PIXELS = "pixel_values"


class LlavaProcessor:
    """Brings every image to the size that the vision transformer was trained on.

    Args:
        images: transformers' processor, as the checkpoint sets it up.
        config: the checkpoint's configuration.
        limits: of one request.
    """

    def __init__(self, images: Any, config: Any, limits: MediaLimits) -> None:
        self._images, self._limits = images, limits
        self._placeholder = int(config.image_token_index)
        self._patch = int(config.vision_config.patch_size)
        skipped = config.vision_feature_select_strategy == "default"
        self._extra = config.vision_config.model_type.startswith("clip") - skipped  # the class token

    def prompt(self, tokens: Sequence[int], images: Sequence[bytes]) -> MediaPrompt:
        """As ``MediaProcessor``."""
        return put_images(tokens, images, self._placeholder, self._limits, self._look)

    def _look(self, image: Image.Image) -> tuple[int, dict[str, MediaArray]]:
        found = self._images(images=[image], return_tensors="np")[PIXELS].astype("float32")
        height, width = found.shape[-2:]
        return (height // self._patch) * (width // self._patch) + self._extra, {PIXELS: as_array(found)}


def load_processor(source: MediaSource) -> LlavaProcessor:
    """As the checkpoint's ``preprocessor_config.json`` says. Raises ``ConfigError`` if there is none."""
    try:
        config = AutoConfig.from_pretrained(source.path, local_files_only=True)
        images = AutoImageProcessor.from_pretrained(source.path, local_files_only=True, backend="pil")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{source.path} does not say how images are prepared: {str(error)[:200]}") from error
    return LlavaProcessor(images, config, source.limits)
