"""Images as callers send them: checked, decoded, and inserted into prompts. Not a plugin; needs Pillow."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from sglang_plug import Media, MediaArray, MediaError, MediaLimits, MediaPrompt

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Formats that are decoded; of several frames the first."""
LONGEST_SIDE = 200
"""Maximum aspect ratio: if resizing fixes the shorter side, the longer one would become huge."""
START_OF_SCAN = b"\xff\xda"
MAX_SCANS = 256
"""Maximum scans of a JPEG file, each of which passes over the whole image; usual files have up to 12.
"""
STRIP = 256
"""Rows that are composited on white at a time."""


class PixelBudget:
    """Limits the pixels of concurrently decoded and prepared images; further images wait.

    Args:
        max_pixels: pixels of all images together. A larger image is let in alone.
    """

    def __init__(self, max_pixels: int) -> None:
        self._max_pixels, self._used = max_pixels, 0
        self._line, self._changed = threading.Lock(), threading.Condition()

    @contextmanager
    def taking(self, pixels: int) -> Iterator[None]:
        """Hold ``pixels`` of the budget while the context is open, first come, first served."""
        with self._line, self._changed:
            self._changed.wait_for(lambda: not self._used or self._used + pixels <= self._max_pixels)
            self._used += pixels
        try:
            yield
        finally:
            with self._changed:
                self._used -= pixels
                self._changed.notify()


DECODING = PixelBudget(40_000_000)
"""Budget of this process, which bounds its memory: a pixel takes about 14 bytes until its image is prepared."""


def open_image(data: bytes, limits: MediaLimits) -> Image.Image:
    """Decode an image to RGB in its stated orientation. Raises ``MediaError`` if it is invalid or too large.

    The size is read from the header before anything is decoded.
    """
    with _reading(limits):
        image = _opened(data, limits)
        ImageOps.exif_transpose(image, in_place=True)
        return _rgb(image)


def count_pixels(data: bytes, limits: MediaLimits) -> int:
    """Return width times height from the header. Raises ``MediaError`` like ``open_image``, decodes nothing."""
    with _reading(limits):
        width, height = _opened(data, limits).size
        return int(width * height)


def _opened(data: bytes, limits: MediaLimits) -> Image.Image:
    """Open an image file and check its header."""
    if len(data) > limits.bytes:
        raise MediaError(f"it has {len(data)} bytes; the maximum is {limits.bytes}")
    image = Image.open(io.BytesIO(data), formats=FORMATS)
    width, height = image.size
    if width * height > limits.pixels:
        raise MediaError(f"it has {width} x {height} pixels; the maximum is {limits.pixels}")
    if max(width, height) > LONGEST_SIDE * min(width, height):
        raise MediaError(f"it has {width} x {height} pixels; its aspect ratio is at most {LONGEST_SIDE}")
    if image.format == "JPEG" and data.count(START_OF_SCAN) > MAX_SCANS:
        raise MediaError(f"it is a JPEG file of more than {MAX_SCANS} scans, the maximum")
    return image


@contextmanager
def _reading(limits: MediaLimits) -> Iterator[None]:
    """Convert Pillow's exceptions to ``MediaError``."""
    try:
        yield
    except MediaError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise MediaError(f"it has far too many pixels; the maximum is {limits.pixels}") from None
    except MemoryError:
        raise MediaError("there is not enough memory to decode it") from None
    except UnidentifiedImageError:  # its text has the address of an object in memory
        raise MediaError(f"it cannot be read as an image ({', '.join(FORMATS)})") from None
    except Exception as error:  # Pillow's exceptions for broken files vary
        known = ", ".join(FORMATS)
        raise MediaError(f"it cannot be read as an image ({known}): {str(error)[:200]}") from error


def _rgb(image: Image.Image) -> Image.Image:
    """Convert to RGB like transformers' processors: transparency becomes white, and 16 bits keep the upper eight."""
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        return _over_white(image)
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype("uint8"))
    image.load()
    return image if image.mode == "RGB" else image.convert("RGB")


def _over_white(image: Image.Image) -> Image.Image:
    """Composite the image on white strip by strip, because each operation copies its input."""
    image.load()
    canvas = Image.new("RGB", image.size)
    for top in range(0, image.height, STRIP):
        strip = image.crop((0, top, image.width, min(top + STRIP, image.height))).convert("RGBA")
        canvas.paste(Image.alpha_composite(Image.new("RGBA", strip.size, "white"), strip).convert("RGB"), (0, top))
    return canvas


def as_array(values: np.ndarray) -> MediaArray:
    """Return the array as serialisable data."""
    return MediaArray(str(values.dtype), tuple(values.shape), np.ascontiguousarray(values).tobytes())


Arrays = Mapping[str, MediaArray]


def put_images(
    tokens: Sequence[int],
    images: Sequence[bytes],
    placeholder: int,
    limits: MediaLimits,
    image_input: Callable[[Image.Image], tuple[int | Sequence[int], Arrays]],
) -> MediaPrompt:
    """Repeat each ``placeholder`` of ``tokens`` once for each position of its image.

    ``image_input`` returns for an image the number of positions or their tokens, and the model's input. Raises
    ``MediaError``.
    """
    if len(images) > limits.count:
        raise MediaError(f"the prompt has {len(images)} images; the maximum is {limits.count}")
    placeholders = sum(token == placeholder for token in tokens)
    if placeholders != len(images):
        raise MediaError(f"the prompt has placeholders for {placeholders} images, and {len(images)} were sent")
    pixels = _checked(images, limits)
    result = zip(count(), images, pixels, strict=False)
    expanded, media, taken = list[int](), list[Media](), 0
    for token in tokens:
        if token != placeholder:
            expanded.append(token)
            continue
        needed, arrays = _preprocessed(next(result), limits, image_input)
        image_tokens = [placeholder] * needed if isinstance(needed, int) else needed
        taken += len(image_tokens)
        if taken > limits.tokens:
            raise MediaError(f"the images take {taken} tokens or more; the maximum is {limits.tokens}", len(media))
        media.append(Media.of(len(expanded), len(image_tokens), arrays))
        expanded += image_tokens
    return MediaPrompt(expanded, tuple(media))


def _checked(images: Sequence[bytes], limits: MediaLimits) -> list[int]:
    """Return the pixels of each image. Raises ``MediaError`` for a bad header or too many pixels in total."""
    pixels = []
    for index, data in enumerate(images):
        try:
            pixels.append(count_pixels(data, limits))
        except MediaError as error:
            raise MediaError(str(error), index) from error.__cause__
    if (total := sum(pixels)) > limits.request_pixels:
        limit = limits.request_pixels
        raise MediaError(f"the images have {total} pixels together; the maximum for one prompt is {limit}")
    return pixels


def _preprocessed(
    image: tuple[int, bytes, int],
    limits: MediaLimits,
    image_input: Callable[[Image.Image], tuple[int | Sequence[int], Arrays]],
) -> tuple[int | Sequence[int], Arrays]:
    index, data, pixels = image
    try:
        with DECODING.taking(pixels):
            return image_input(open_image(data, limits))
    except MediaError as error:
        raise MediaError(str(error), index) from error.__cause__
    except MemoryError:
        raise MediaError("there is not enough memory to prepare it", index) from None
    except ValueError as error:  # the processor refuses the image's shape
        raise MediaError(str(error)[:200], index) from error
