"""Images are checked before they are decoded, and inserted at their placeholders."""

from __future__ import annotations

import io
import threading
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from transformers.image_transforms import convert_to_rgb

from sglang_plug import MediaError, MediaLimits
from sglang_plug_models.common.images import FORMATS, STRIP, PixelBudget, as_array, open_image, put_images

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
    result = open_image(file_of(Image.new("RGB", (7, 5), "red").convert(mode), form), LIMITS)
    assert (result.mode, result.size) == ("RGB", (7, 5))


def transparent() -> dict[str, bytes]:
    """Return images of one colour that are partly or fully transparent."""
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
def test_transparency_becomes_white_as_in_transformers(name: str) -> None:
    data = transparent()[name]
    result = open_image(data, LIMITS)
    assert result.mode == "RGB"
    assert np.array_equal(np.asarray(result), convert_to_rgb(Image.open(io.BytesIO(data)), return_numpy=True))
    assert (result.getpixel((0, 0)) == (255, 255, 255)) == (name not in ("half", "opaque"))


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_sixteen_bits_become_eight(form: str) -> None:
    result = open_image(file_of(Image.fromarray(np.array([[0, 256, 0x8000, 0xFFFF]], "uint16")), form), LIMITS)
    assert [result.getpixel((column, 0)) for column in range(4)] == [(grey,) * 3 for grey in (0, 1, 128, 255)]


@pytest.mark.parametrize("form", ["JPEG", "TIFF"])
def test_colours_of_printers(form: str) -> None:
    result = open_image(file_of(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), form), LIMITS)
    assert result.getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.parametrize("form", ["GIF", "PNG", "TIFF"])
def test_of_several_frames_the_first_is_read(form: str) -> None:
    first, *others = (Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue"))
    result = open_image(file_of(first, form, save_all=True, append_images=others), LIMITS)
    assert (result.size, result.getpixel((0, 0))) == ((8, 8), (255, 0, 0))


@pytest.mark.parametrize("way", range(1, 9))
def test_the_way_up_is_the_files(way: int) -> None:
    image, exif = Image.new("RGB", (8, 3)), Image.Exif()
    image.putpixel((0, 0), (255, 0, 0))
    exif[0x0112] = way
    result = open_image(file_of(image, exif=exif), LIMITS)
    assert result.size == ((8, 3) if way < 5 else (3, 8))
    red = ((0, 0), (7, 0), (7, 2), (0, 2), (0, 0), (2, 0), (2, 7), (0, 7))[way - 1]
    assert result.getpixel(red) == (255, 0, 0)


def bomb(width: int, height: int) -> bytes:
    """Return a PNG file whose header claims a larger image than the file contains."""
    whole = bytearray(file_of(Image.new("RGB", (1, 1))))
    whole[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    whole[29:33] = zlib.crc32(whole[12:29]).to_bytes(4, "big")
    return bytes(whole)


def test_a_decompression_bomb_is_told_by_its_header() -> None:
    for size, words in ((60000, "far too many pixels"), (11000, "far too many"), (6000, "6000 x 6000 pixels")):
        with pytest.raises(MediaError, match=f"{words}.*; the maximum is 32000000"):
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
def test_a_decompression_bomb_next_to_an_image(kind: bytes) -> None:
    whole = file_of(Image.new("RGB", (1, 1)))
    packed = b"name\0\0" + zlib.compress(bytes(100 << 20))
    with pytest.raises(MediaError, match="too large"):
        open_image(whole[:33] + chunk(kind, packed) + whole[33:], LIMITS)


@pytest.mark.parametrize("size", [(1, 201), (2010, 10)])
def test_one_side_is_not_much_longer_than_the_other(size: tuple[int, int]) -> None:
    """A processor that scales the shorter side to a fixed length would create a huge image."""
    with pytest.raises(MediaError, match=f"{size[0]} x {size[1]} pixels; its aspect ratio is at most 200"):
        open_image(file_of(Image.new("L", size)), LIMITS)
    assert open_image(file_of(Image.new("L", (1, 200))), LIMITS).size == (1, 200)


@pytest.mark.parametrize("data", [b"", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"<svg/>", b"%PDF-1.4", b"P6 1 1 255 abc"])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(MediaError, match="cannot be read as an image") as caught:
        open_image(data, LIMITS)
    assert "0x" not in str(caught.value)  # no address of an object in the server's memory


def test_too_many_bytes() -> None:
    data = file_of(Image.new("RGB", (9, 9)))
    with pytest.raises(MediaError, match=f"has {len(data)} bytes; the maximum is 20"):
        open_image(data, MediaLimits(bytes=20))


def looked(image: Image.Image) -> tuple[int, dict[str, Any]]:
    if image.size == (2, 2):
        raise ValueError("too small")
    return image.size[0], {"size": as_array(np.array(image.size))}


def test_each_placeholder_becomes_as_many_as_its_image_needs() -> None:
    images = [file_of(Image.new("RGB", (width, 1))) for width in (3, 1)]
    result = put_images([5, 9, 6, 9], images, 9, LIMITS, looked)
    assert result.tokens == [5, 9, 9, 9, 6, 9]
    assert [(image.start, image.count, image.arrays["size"].shape) for image in result.media] == [
        (1, 3, (2,)),
        (5, 1, (2,)),
    ]


def test_a_placeholder_becomes_the_tokens_that_its_image_names() -> None:
    result = put_images([5, 9], [file_of(Image.new("RGB", (3, 1)))], 9, LIMITS, lambda image: ([9, 4, 9, 3], {}))
    assert result.tokens == [5, 9, 4, 9, 3]
    assert [(image.start, image.count) for image in result.media] == [(1, 4)]


def test_errors_name_the_image() -> None:
    good, small = file_of(Image.new("RGB", (3, 1))), file_of(Image.new("RGB", (2, 2)))
    for bad, words in ((b"?", "cannot be read"), (small, "too small")):
        with pytest.raises(MediaError, match=words) as caught:
            put_images([9, 9], [good, bad], 9, LIMITS, looked)
        assert caught.value.index == 1


def test_numbers_of_placeholders_and_images() -> None:
    good = file_of(Image.new("RGB", (3, 1)))
    with pytest.raises(MediaError, match="placeholders for 1 images, and 2 were sent"):
        put_images([9], [good, good], 9, LIMITS, looked)
    with pytest.raises(MediaError, match="the images take 6 tokens or more; the maximum is 5") as caught:
        put_images([9, 9, 9], [good] * 3, 9, MediaLimits(tokens=5), looked)
    assert caught.value.index == 1
    with pytest.raises(MediaError, match="has 2 images; the maximum is 1"):
        put_images([9, 9], [good, good], 9, MediaLimits(count=1), looked)


def test_the_pixels_of_a_prompt_are_limited_before_anything_is_decoded() -> None:
    images = [file_of(Image.new("L", (100, 90)))] * 16
    opened: list[Image.Image] = []

    def image_input(image: Image.Image) -> tuple[int, dict[str, Any]]:
        opened.append(image)
        return 1, {}

    with pytest.raises(MediaError, match="have 144000 pixels together; the maximum for one prompt is 143999"):
        put_images([9] * 16, images, 9, MediaLimits(request_pixels=143_999), image_input)
    assert not opened
    put_images([9] * 16, images, 9, MediaLimits(request_pixels=144_000), image_input)
    assert len(opened) == 16


def test_a_jpeg_of_many_scans_is_refused() -> None:
    whole = file_of(Image.new("RGB", (64, 64), "red"), "JPEG", progressive=True)
    assert open_image(whole, LIMITS).size == (64, 64)
    last = whole.rindex(b"\xff\xda")
    with pytest.raises(MediaError, match="more than 256 scans"):
        open_image(whole[:last] + whole[last:-2] * 300 + whole[-2:], LIMITS)


def test_see_through_images_of_many_rows() -> None:
    noise = np.random.default_rng(1).integers(0, 256, (2 * STRIP + 9, 5, 4), "uint8")
    data = file_of(Image.fromarray(noise, "RGBA"))
    expected = convert_to_rgb(Image.open(io.BytesIO(data)), return_numpy=True)
    assert np.array_equal(np.asarray(open_image(data, LIMITS)), expected)


def test_a_budget_lets_in_what_fits_and_a_larger_image_alone() -> None:
    budget, entered, leave = PixelBudget(10), threading.Semaphore(0), threading.Semaphore(0)
    held: list[int] = []

    def hold(pixels: int) -> None:
        with budget.taking(pixels):
            held.append(pixels)
            assert sum(held) <= 10 or held == [pixels]
            entered.release()
            leave.acquire()
            held.remove(pixels)

    threads = [threading.Thread(target=hold, args=(pixels,)) for pixels in (4, 6, 99, 5, 5)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert entered.acquire(timeout=60)
        leave.release()
    for thread in threads:
        thread.join()
    assert held == []


FILES = {form: file_of(Image.linear_gradient("L").resize((40, 30)).convert("RGB"), form) for form in FORMATS}
changes = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=4)), max_size=8)


@given(st.sampled_from(FORMATS), changes, st.floats(0.2, 1))
def test_a_damaged_file_is_read_or_refused(form: str, changed: list[tuple[float, bytes]], kept: float) -> None:
    data = bytearray(FILES[form][: int(len(FILES[form]) * kept)])
    for position, new in changed:
        start = int(position**3 * len(data))  # mostly in the header
        data[start : start + len(new)] = new
    limits = MediaLimits(pixels=100_000)
    try:
        result = open_image(bytes(data), limits)
    except MediaError:
        return
    assert result.mode == "RGB" and result.width * result.height <= limits.pixels
