"""Images are checked before they are decoded, and put where the prompt has a place for them."""

from __future__ import annotations

import io
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers.image_transforms import convert_to_rgb

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


def transparent() -> dict[str, bytes]:
    """Images of one colour that is (partly) see-through."""
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([9, 8, 7] * 256)
    return {
        "rgba": file_of(Image.new("RGBA", (4, 4), (200, 10, 20, 0))),
        "half": file_of(Image.new("RGBA", (4, 4), (200, 10, 20, 128))),
        "grey": file_of(Image.new("LA", (4, 4), (200, 0))),
        "palette": file_of(palette, transparency=bytes([255, 0, 255])),
        "one colour": file_of(Image.new("RGB", (4, 4), (1, 2, 3)), transparency=(1, 2, 3)),
        "gif": file_of(palette, "GIF", transparency=1),
        "opaque": file_of(Image.new("RGBA", (4, 4), (200, 10, 20, 255))),
    }


@pytest.mark.parametrize("name", transparent())
def test_what_is_see_through_is_white_as_in_transformers(name: str) -> None:
    data = transparent()[name]
    found = open_image(data, LIMITS)
    assert found.mode == "RGB"
    assert np.array_equal(np.asarray(found), convert_to_rgb(Image.open(io.BytesIO(data)), return_numpy=True))
    assert (found.getpixel((0, 0)) == (255, 255, 255)) == (name not in ("half", "opaque"))


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_sixteen_bits_become_eight(form: str) -> None:
    found = open_image(file_of(Image.fromarray(np.array([[0, 256, 0x8000, 0xFFFF]], "uint16")), form), LIMITS)
    assert [found.getpixel((place, 0)) for place in range(4)] == [(grey,) * 3 for grey in (0, 1, 128, 255)]


@pytest.mark.parametrize("form", ["JPEG", "TIFF"])
def test_colours_of_printers(form: str) -> None:
    found = open_image(file_of(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), form), LIMITS)
    assert found.getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.parametrize("form", ["GIF", "PNG", "TIFF"])
def test_of_several_frames_the_first_is_read(form: str) -> None:
    first, *others = (Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue"))
    found = open_image(file_of(first, form, save_all=True, append_images=others), LIMITS)
    assert (found.size, found.getpixel((0, 0))) == ((8, 8), (255, 0, 0))


@pytest.mark.parametrize("way", range(1, 9))
def test_the_way_up_is_the_files(way: int) -> None:
    image, exif = Image.new("RGB", (8, 3)), Image.Exif()
    image.putpixel((0, 0), (255, 0, 0))
    exif[0x0112] = way
    found = open_image(file_of(image, exif=exif), LIMITS)
    assert found.size == ((8, 3) if way < 5 else (3, 8))
    red = ((0, 0), (7, 0), (7, 2), (0, 2), (0, 0), (2, 0), (2, 7), (0, 7))[way - 1]
    assert found.getpixel(red) == (255, 0, 0)


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


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_truncated_files(form: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), "uint8")
    whole = file_of(Image.fromarray(noise), form)
    for size in (10, len(whole) // 2, len(whole) - len(whole) // 10):
        with pytest.raises(MediaError, match="cannot be read as an image"):
            open_image(whole[:size], LIMITS)


def chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


@pytest.mark.parametrize("kind", [b"zTXt", b"iCCP"])
def test_a_bomb_beside_the_picture(kind: bytes) -> None:
    whole = file_of(Image.new("RGB", (1, 1)))
    packed = b"name\0\0" + zlib.compress(bytes(100 << 20))
    with pytest.raises(MediaError, match="too large"):
        open_image(whole[:33] + chunk(kind, packed) + whole[33:], LIMITS)


@pytest.mark.parametrize("size", [(1, 201), (2010, 10)])
def test_one_side_is_not_much_longer_than_the_other(size: tuple[int, int]) -> None:
    """A processor that brings the shorter one to some length would make a huge image of it."""
    with pytest.raises(MediaError, match=f"{size[0]} x {size[1]} pixels; its aspect ratio is at most 200"):
        open_image(file_of(Image.new("L", size)), LIMITS)
    assert open_image(file_of(Image.new("L", (1, 200))), LIMITS).size == (1, 200)


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


def test_a_placeholder_becomes_the_tokens_that_its_image_names() -> None:
    found = put_images([5, 9], [file_of(Image.new("RGB", (3, 1)))], 9, LIMITS, lambda image: ([9, 4, 9, 3], {}))
    assert found.tokens == [5, 9, 4, 9, 3]
    assert [(one.start, one.count) for one in found.media] == [(1, 4)]


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
