"""Images as callers send them: checked, decoded, and put into prompts. Not a plugin; needs Pillow."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from itertools import count

import numpy as np
from PIL import Image, ImageOps

from sglang_plug import Media, MediaArray, MediaError, MediaLimits, MediaPrompt

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""What is decoded; of several frames the first."""
LONGEST_SIDE = 200
"""Most times that one side may be as long as the other: where resizing sets the shorter one, the other gets huge."""


def open_image(data: bytes, limits: MediaLimits) -> Image.Image:
    """The image as RGB, the way up that it says. Raises ``MediaError`` if it is none, or is too large.

    Its size is taken from its header, before anything is decoded.
    """
    if len(data) > limits.bytes:
        raise MediaError(f"it has {len(data)} bytes; the most that is read is {limits.bytes}")
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        width, height = image.size
        if width * height > limits.pixels:
            raise MediaError(f"it has {width} x {height} pixels; the most that is decoded is {limits.pixels}")
        if max(width, height) > LONGEST_SIDE * min(width, height):
            raise MediaError(f"it has {width} x {height} pixels; its aspect ratio is at most {LONGEST_SIDE}")
        return _rgb(ImageOps.exif_transpose(image))
    except MediaError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise MediaError(f"it has far too many pixels; the most that is decoded is {limits.pixels}") from None
    except MemoryError:
        raise MediaError("memory does not suffice to decode it") from None
    except Exception as error:  # Pillow's readers fail in many ways on what is broken
        known = ", ".join(FORMATS)
        raise MediaError(f"it cannot be read as an image ({known}): {str(error)[:200]}") from error


def _rgb(image: Image.Image) -> Image.Image:
    """As transformers' processors have it: what is see-through is white. Of 16 bits the upper eight are kept."""
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype("uint8"))
    image.load()
    return image.convert("RGB")


def as_array(values: np.ndarray) -> MediaArray:
    """The array as plain data."""
    return MediaArray(str(values.dtype), tuple(values.shape), np.ascontiguousarray(values).tobytes())


Arrays = Mapping[str, MediaArray]


def put_images(
    tokens: Sequence[int],
    images: Sequence[bytes],
    placeholder: int,
    limits: MediaLimits,
    look: Callable[[Image.Image], tuple[int | Sequence[int], Arrays]],
) -> MediaPrompt:
    """The prompt in which each ``placeholder`` of ``tokens`` is repeated for as many places as its image needs.

    ``look`` tells of an image how many these are, or which tokens stand there, and what the model gets. Raises
    ``MediaError``.
    """
    if len(images) > limits.count:
        raise MediaError(f"the prompt has {len(images)} images; the most is {limits.count}")
    places = sum(token == placeholder for token in tokens)
    if places != len(images):
        raise MediaError(f"the prompt has places for {places} images, and {len(images)} were sent")
    found = zip(count(), images, strict=False)
    expanded, media, taken = list[int](), list[Media](), 0
    for token in tokens:
        if token != placeholder:
            expanded.append(token)
            continue
        needed, arrays = _looked(next(found), limits, look)
        shown = [placeholder] * needed if isinstance(needed, int) else needed
        taken += len(shown)
        if taken > limits.tokens:
            raise MediaError(f"the images take {taken} tokens or more; the most is {limits.tokens}", len(media))
        media.append(Media.of(len(expanded), len(shown), arrays))
        expanded += shown
    return MediaPrompt(expanded, tuple(media))


def _looked(
    one: tuple[int, bytes], limits: MediaLimits, look: Callable[[Image.Image], tuple[int | Sequence[int], Arrays]]
) -> tuple[int | Sequence[int], Arrays]:
    index, data = one
    try:
        return look(open_image(data, limits))
    except MediaError as error:
        raise MediaError(str(error), index) from error.__cause__
    except MemoryError:
        raise MediaError("memory does not suffice to prepare it", index) from None
    except ValueError as error:  # the processor refuses its shape
        raise MediaError(str(error)[:200], index) from error
