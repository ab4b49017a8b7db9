from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sglang_plug import ConfigError, Media, MediaArray, MediaError, MediaPrompt, MediaSource, PluginError
from sglang_plug.testing import check_media_processor

PLACEHOLDER, SIDE = 90, 4


def png(width: int, height: int, colour: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), (colour, 0, 255 - colour)).save(file, "PNG")
    return file.getvalue()


IMAGES = [png(8, 8, 10), png(12, 8, 200), png(4, 20, 90), png(8, 12, 200)]


class Squares:
    """A correct media processor with a token for each square of an image."""

    def __init__(self, source: MediaSource) -> None:
        if not (source.path / "squares.txt").exists():
            raise ConfigError("squares.txt is missing")
        self.limits = source.limits

    def prompt(self, tokens: Sequence[int], images: Sequence[bytes]) -> MediaPrompt:
        if tokens.count(PLACEHOLDER) != len(images):
            raise MediaError("the number of placeholders is not the number of images")
        if len(images) > self.limits.count:
            raise MediaError("too many images")
        opened = [self.opened(image, index) for index, image in enumerate(images)]
        if sum(image.width * image.height for image in opened) > self.limits.request_pixels:
            raise MediaError("too many pixels")
        result, media = list[int](), list[Media]()
        remaining = iter(opened)
        for token in tokens:
            if token == PLACEHOLDER:
                media.append(self.media(len(result), next(remaining)))
                result += [PLACEHOLDER] * media[-1].count
            else:
                result.append(token)
        if sum(item.count for item in media) > self.limits.tokens:
            raise MediaError("too many tokens")
        return MediaPrompt(result, tuple(media))

    def opened(self, data: bytes, index: int) -> Image.Image:
        if len(data) > self.limits.bytes:
            raise MediaError("too large", index)
        try:
            image = Image.open(io.BytesIO(data))
            if image.width * image.height > self.limits.pixels:
                raise MediaError("too many pixels", index)
            return image.convert("RGB")
        except OSError as error:
            raise MediaError(f"unreadable: {error}", index) from error

    def media(self, start: int, image: Image.Image) -> Media:
        count = max(1, image.width * image.height // SIDE**2)
        pixels = MediaArray("uint8", (image.height, image.width, 3), image.tobytes())
        return Media.of(start, count, {"pixels": pixels})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "squares.txt").write_text("4")
    return tmp_path


def test_a_correct_processor_passes(folder: Path) -> None:
    check_media_processor(Squares, folder, IMAGES, PLACEHOLDER)


class LosesText(Squares):
    def prompt(self, tokens: Sequence[int], images: Sequence[bytes]) -> MediaPrompt:
        result = super().prompt(tokens, images)
        return MediaPrompt(result.tokens[:-1], result.media) if images else result


class ChangesItsInput(Squares):
    def prompt(self, tokens: Sequence[int], images: Sequence[bytes]) -> MediaPrompt:
        result = super().prompt(tokens, images)
        tokens[:] = result.tokens  # type: ignore[index]
        return result


class OneDigest(Squares):
    def media(self, start: int, image: Image.Image) -> Media:
        return replace(super().media(start, image), digest=b"image")


class NewDigests(Squares):
    count = 0

    def media(self, start: int, image: Image.Image) -> Media:
        self.count += 1
        return replace(super().media(start, image), digest=hashlib.sha256(str(self.count).encode()).digest())


class DigestOfPosition(Squares):
    def media(self, start: int, image: Image.Image) -> Media:
        media = super().media(start, image)
        return replace(media, digest=media.digest + str(start).encode())


class WrongPositions(Squares):
    def media(self, start: int, image: Image.Image) -> Media:
        return super().media(start + 1, image)


class WrongShapes(Squares):
    def media(self, start: int, image: Image.Image) -> Media:
        media = super().media(start, image)
        return replace(media, arrays={"pixels": replace(media.arrays["pixels"], shape=(7, 7, 7))})


class SharesState(Squares):
    def prompt(self, tokens: Sequence[int], images: Sequence[bytes]) -> MediaPrompt:
        self.images = images
        time.sleep(0.001)
        return super().prompt(tokens, self.images)


class RaisesOSError(Squares):
    def opened(self, data: bytes, index: int) -> Image.Image:
        return Image.open(io.BytesIO(data)).convert("RGB") if len(data) <= self.limits.bytes else super().opened(b"", 0)


class NamesTheWrongImage(Squares):
    def opened(self, data: bytes, index: int) -> Image.Image:
        return super().opened(data, 0)


class WithoutLimit(Squares):
    name = ""

    def __init__(self, source: MediaSource) -> None:
        super().__init__(replace(source, limits=replace(source.limits, **{self.name: 1 << 40})))


class CountsTheLastImage(Squares):
    """Compares only the last image's pixels with the limit for all images together."""

    def prompt(self, tokens: Sequence[int], images: Sequence[bytes]) -> MediaPrompt:
        limits, self.limits = self.limits, replace(self.limits, request_pixels=1 << 40)
        try:
            result = super().prompt(tokens, images)
        finally:
            self.limits = limits
        last = Image.open(io.BytesIO(images[-1])) if images else None
        if last is not None and last.width * last.height > limits.request_pixels:
            raise MediaError("too many pixels")
        return result


class AnyFolder(Squares):
    def __init__(self, source: MediaSource) -> None:
        self.limits = source.limits


class DigestOfPixels(Squares):
    def media(self, start: int, image: Image.Image) -> Media:
        return replace(super().media(start, image), digest=hashlib.sha256(image.tobytes()).digest())


class RefusesAtTheLimit(Squares):
    def prompt(self, tokens: Sequence[int], images: Sequence[bytes]) -> MediaPrompt:
        if len(images) >= self.limits.count:
            raise MediaError("too many images")
        return super().prompt(tokens, images)


class LateByOne(Squares):
    def prompt(self, tokens: Sequence[int], images: Sequence[bytes]) -> MediaPrompt:
        result = super().prompt(tokens, images)
        return MediaPrompt(
            result.tokens,
            tuple(replace(item, start=item.start + (index > 0)) for index, item in enumerate(result.media)),
        )


class NeedsAList(Squares):
    def prompt(self, tokens: Sequence[int], images: Sequence[bytes]) -> MediaPrompt:
        return super().prompt(tokens.copy(), images)  # type: ignore[attr-defined]


class OtherDtype(Squares):
    name = "u1"

    def media(self, start: int, image: Image.Image) -> Media:
        media = super().media(start, image)
        return replace(media, arrays={key: replace(item, dtype=self.name) for key, item in media.arrays.items()})


class WiderDtype(OtherDtype):
    name = "float32"


class LimitsEachImage(Squares):
    def prompt(self, tokens: Sequence[int], images: Sequence[bytes]) -> MediaPrompt:
        limits, self.limits = self.limits, replace(self.limits, tokens=1 << 30)
        try:
            result = super().prompt(tokens, images)
        finally:
            self.limits = limits
        if any(item.count > limits.tokens for item in result.media):
            raise MediaError("too many tokens")
        return result


@pytest.mark.planted_bug("media-processor")
@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (LosesText, "the text around it is not kept|without images must be kept"),
        (ChangesItsInput, "changes the tokens that it is given"),
        (OneDigest, "different images have the same digest"),
        (NewDigests, "image 0: differs each time"),
        (DigestOfPosition, "appears twice in a prompt has two digests"),
        (WrongPositions, "the text around it is not kept"),
        (WrongShapes, "the array pixels has .* bytes, and its shape is"),
        (SharesState, r"called from 6 threads at once"),
        (RaisesOSError, "must be refused with MediaError; it raised Unidentified"),
        (NamesTheWrongImage, "is number 1, and the error names 0"),
        (CountsTheLastImage, "two images that only together are beyond the limit request_pixels must be refused"),
        (AnyFolder, "an empty folder must be refused"),
        (DigestOfPixels, "different images have the same digest"),
        (RefusesAtTheLimit, "as many and as large as count, bytes and tokens allow"),
        (LateByOne, "the text before image 2 is"),
        (NeedsAList, "AttributeError: 'tuple' object has no attribute 'copy'"),
        (OtherDtype, "has the dtype 'u1', which torch has not"),
        (WiderDtype, "its shape is .* in float32"),
        (LimitsEachImage, "only together are beyond the limit tokens"),
    ],
)
def test_planted_bugs_are_named(processor: Any, message: str, folder: Path) -> None:
    with pytest.raises(AssertionError, match=message):
        check_media_processor(processor, folder, IMAGES, PLACEHOLDER)


@pytest.mark.planted_bug("media-processor")
@pytest.mark.parametrize("limit", ["count", "bytes", "pixels", "request_pixels", "tokens"])
def test_a_limit_that_is_ignored_is_named(limit: str, folder: Path) -> None:
    class Ignoring(WithoutLimit):
        name = limit

    with pytest.raises(AssertionError, match=f"images beyond the limit {limit}(=1)? must be refused"):
        check_media_processor(Ignoring, folder, IMAGES, PLACEHOLDER)


def test_arguments_are_checked(folder: Path) -> None:
    with pytest.raises(AssertionError, match="two different images"):
        check_media_processor(Squares, folder, IMAGES[:1], PLACEHOLDER)
    with pytest.raises(PluginError, match="no media-processor named 'nobody'"):
        check_media_processor("nobody", folder, IMAGES, PLACEHOLDER)
