"""Images are checked before they are decoded, and put where the prompt has a place for them."""

from __future__ import annotations

import io
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sglang_plug import MediaError, MediaLimits
from sglang_plug_models.pictures import FORMATS, as_array, open_image, put_images

LIMITS = MediaLimits()


def file_of(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("mode", ["RGB", "L", "P", "1"])
def test_every_format_becomes_rgb(form: str, mode: str) -> None:
    if (form, mode) in {("JPEG", "P")}:
        pytest.skip("there is no such file")
    found = open_image(file_of(Image.new("RGB", (7, 5), "red").convert(mode), form), LIMITS)
    assert (found.mode, found.size) == ("RGB", (7, 5))


def test_transparency_in_a_palette() -> None:
    image = Image.new("P", (4, 4))
    found = open_image(file_of(image, transparency=bytes([0, 10, 255])), LIMITS)
    assert found.mode == "RGB"


def test_the_way_up_is_the_files() -> None:
    image, exif = Image.new("RGB", (8, 3)), Image.Exif()
    exif[0x0112] = 6
    assert open_image(file_of(image, "JPEG", exif=exif), LIMITS).size == (3, 8)


def bomb(width: int, height: int) -> bytes:
    """A PNG whose header promises more than is there."""
    whole = bytearray(file_of(Image.new("RGB", (1, 1))))
    whole[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    whole[29:33] = zlib.crc32(whole[12:29]).to_bytes(4, "big")
    return bytes(whole)


def test_a_decompression_bomb_is_told_by_its_header() -> None:
    for size, words in ((60000, "far too many pixels"), (11000, "far too many"), (6000, "6000 x 6000 pixels")):
        with pytest.raises(MediaError, match=f"{words}.*; the most that is decoded is 32000000"):
            open_image(bomb(size, size), LIMITS)
    with pytest.raises(MediaError, match="cannot be read"):
        open_image(bomb(40, 40), LIMITS)


@pytest.mark.parametrize("data", [b"", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"<svg/>", b"%PDF-1.4", b"P6 1 1 255 abc"])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(MediaError, match="cannot be read as an image"):
        open_image(data, LIMITS)


def test_too_many_bytes() -> None:
    data = file_of(Image.new("RGB", (9, 9)))
    with pytest.raises(MediaError, match=f"has {len(data)} bytes; the most that is read is 20"):
        open_image(data, MediaLimits(bytes=20))


def looked(image: Image.Image) -> tuple[int, dict[str, Any]]:
    if image.size == (2, 2):
        raise ValueError("too small")
    return image.size[0], {"size": as_array(np.array(image.size))}


def test_each_placeholder_becomes_as_many_as_its_image_needs() -> None:
    images = [file_of(Image.new("RGB", (width, 1))) for width in (3, 1)]
    found = put_images([5, 9, 6, 9], images, 9, LIMITS, looked)
    assert found.tokens == [5, 9, 9, 9, 6, 9]
    assert [(one.start, one.count, one.arrays["size"].shape) for one in found.media] == [(1, 3, (2,)), (5, 1, (2,))]


def test_errors_name_the_image() -> None:
    good, small = file_of(Image.new("RGB", (3, 1))), file_of(Image.new("RGB", (2, 2)))
    for bad, words in ((b"?", "cannot be read"), (small, "too small")):
        with pytest.raises(MediaError, match=words) as caught:
            put_images([9, 9], [good, bad], 9, LIMITS, looked)
        assert caught.value.index == 1


def test_numbers_of_places_and_images() -> None:
    good = file_of(Image.new("RGB", (3, 1)))
    with pytest.raises(MediaError, match="places for 1 images, and 2 were sent"):
        put_images([9], [good, good], 9, LIMITS, looked)
    with pytest.raises(MediaError, match="the images take 6 tokens or more; the most is 5") as caught:
        put_images([9, 9, 9], [good] * 3, 9, MediaLimits(tokens=5), looked)
    assert caught.value.index == 1
    with pytest.raises(MediaError, match="has 2 images; the most is 1"):
        put_images([9, 9], [good, good], 9, MediaLimits(count=1), looked)
