"""Conformance test of media processors: prompts with images, and images that cannot be read."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from sglang_plug.config import ConfigError
from sglang_plug.contracts.text.media import (
    MediaError,
    MediaLimits,
    MediaProcessor,
    MediaProcessorLoader,
    MediaPrompt,
    MediaSource,
)
from sglang_plug.plugins.registry import Plugins
from sglang_plug.testing.concurrency import check_threads
from sglang_plug.testing.refusals import refusal_of

BEFORE, BETWEEN, AFTER = [11, 12, 13], [14], [15, 16]
FIRST_PIXELS = 1 << 12
"""Pixels from which the search for a limit goes up; a small image has about so many."""
"""Tokens of text around images; the vocabulary must have them, and none may be the placeholder."""


def check_media_processor(
    processor: str | MediaProcessorLoader, path: str | Path, images: Sequence[bytes], placeholder: int
) -> None:
    """Make prompts of tokens and images: of one, of several, of unreadable ones, of too many and of too large ones.

    Text around images is kept, every image has placeholder tokens of its own and arrays that its shapes describe, equal
    images have equal digests and different ones do not, whatever cannot be read is refused with ``MediaError`` that
    names the image, and the limits hold. Several threads may call it at once.

    Args:
        processor: its loader, or the name an installed plugin declared it under.
        path: a folder with the files that it needs of a checkpoint.
        images: at least two different images, as files.
        placeholder: the token that stands for an image in the tokens that it is given.

    Raises:
        AssertionError: says what is wrong.
        PluginError: no plugin, or more than one, declares the name.
    """
    assert len(images) >= 2 and images[0] != images[1], "give check_media_processor two different images"
    load: MediaProcessorLoader
    load = processor if callable(processor) else Plugins.discover().get("media-processor", processor).factory()
    _check_empty_folder(load)
    media_case = _MediaCase(load, Path(path), placeholder)
    made = media_case.made(MediaLimits())
    _check_texts(media_case, made)
    for number, image in enumerate(images):
        _check_one(media_case, made, image, f"image {number}")
    _check_digests(media_case, made, images)
    _check_several(media_case, made, images)
    _check_refusals(media_case, made, images[0])
    _check_limits(media_case, images)
    check_threads(
        {f"image {number}": _prompt_of(media_case, made, image) for number, image in enumerate(images)}, "prompt()"
    )


class _MediaCase:
    """A media processor to be tested, and prompts for it."""

    def __init__(self, load: MediaProcessorLoader, path: Path, placeholder: int) -> None:
        assert placeholder not in (*BEFORE, *BETWEEN, *AFTER), "the placeholder is one of the tokens of the test's text"
        self._load, self._path, self.placeholder = load, path, placeholder

    def made(self, limits: MediaLimits) -> MediaProcessor:
        return self._load(MediaSource(path=self._path, limits=limits))

    def prompt(
        self, processor: MediaProcessor, images: Sequence[bytes], tokens: Sequence[int] | None = None
    ) -> MediaPrompt:
        """Return the prompt of ``tokens``, by default text with one placeholder for each image."""
        try:
            return self.ask(processor, images, tokens)
        except Exception as error:
            if isinstance(error, AssertionError):
                raise
            raise AssertionError(f"a prompt with {len(images)} images: {type(error).__name__}: {error}") from error

    def ask(self, processor: MediaProcessor, images: Sequence[bytes], tokens: Sequence[int] | None) -> MediaPrompt:
        """Return what the processor returns, or raise what it raises; check that it leaves the tokens as they are."""
        prompt = self.tokens(len(images)) if tokens is None else tokens
        kept = list(prompt)
        result = processor.prompt(prompt, images)
        assert list(prompt) == kept, "prompt() changes the tokens that it is given"
        assert isinstance(result, MediaPrompt), f"prompt() must return a MediaPrompt, not {type(result).__name__}"
        return result

    def tokens(self, images: int) -> list[int]:
        middle = [token for _ in range(images) for token in (self.placeholder, *BETWEEN)]
        return [*BEFORE, *middle, *AFTER]


def _prompt_of(media_case: _MediaCase, processor: MediaProcessor, image: bytes) -> Callable[[], object]:
    def call() -> object:
        result = media_case.prompt(processor, [image])
        return result.tokens, [(media.start, media.count, media.digest) for media in result.media]

    return call


def _check_empty_folder(load: MediaProcessorLoader) -> None:
    with TemporaryDirectory() as empty:
        error = refusal_of(lambda: load(MediaSource(path=Path(empty))), ConfigError, "an empty folder")
    assert error is not None, "an empty folder must be refused with ConfigError; a processor was made of it"


def _check_texts(media_case: _MediaCase, processor: MediaProcessor) -> None:
    result = media_case.prompt(processor, [], [*BEFORE, *AFTER])
    assert result.tokens == [*BEFORE, *AFTER] and not result.media, "a prompt without images must be kept as it is"


def _check_one(media_case: _MediaCase, processor: MediaProcessor, image: bytes, case: str) -> None:
    result, again = media_case.prompt(processor, [image]), media_case.prompt(processor, [image])
    assert len(result.media) == 1, f"{case}: a prompt with one image has {len(result.media)} media"
    media = result.media[0]
    assert 0 < media.count and 0 <= media.start and media.end <= len(result.tokens), (
        f"{case}: its tokens {media.start} to {media.end} are not within the prompt of {len(result.tokens)} tokens"
    )
    text = result.tokens[: media.start], result.tokens[media.end :]
    assert text[0][: len(BEFORE)] == BEFORE and text[1][-len(BETWEEN + AFTER) :] == BETWEEN + AFTER, (
        f"{case}: the text around it is not kept: {text[0][-4:]} … {text[1][:4]}"
    )
    assert media.digest == again.media[0].digest and result.tokens == again.tokens, f"{case}: differs each time"
    assert media.arrays, f"{case}: there are no arrays for the model"
    for name, item in media.arrays.items():
        numbers = 1
        for length in item.shape:
            numbers *= length
        dtype = getattr(torch, item.dtype, None)
        assert isinstance(dtype, torch.dtype), (
            f"{case}: the array {name} has the dtype {item.dtype!r}, which torch has not"
        )
        assert len(item.data) == numbers * dtype.itemsize > 0, (
            f"{case}: the array {name} has {len(item.data)} bytes, and its shape is {item.shape} in {item.dtype}"
        )


def _check_digests(media_case: _MediaCase, processor: MediaProcessor, images: Sequence[bytes]) -> None:
    """Images whose arrays differ, in their numbers, shape or dtype, have different digests."""
    every = [media_case.prompt(processor, [image]).media[0] for image in images]
    for (number, media), (other_number, other) in combinations(enumerate(every), 2):
        assert media.digest != other.digest or media.arrays == other.arrays, (
            f"different images have the same digest, so that one gets the cached prefix of the other: {number} and "
            f"{other_number}"
        )
    assert every[0].digest != every[1].digest, "different images have the same digest: 0 and 1"


def _check_placement(result: MediaPrompt, case: str) -> None:
    """Text before, between and after images is kept."""
    ends = [0, *(media.end for media in result.media)]
    starts = [*(media.start for media in result.media), len(result.tokens)]
    for number, (end, start) in enumerate(zip(ends, starts, strict=True)):
        text = result.tokens[end:start]
        kept = list(BEFORE) if number == 0 else list(BETWEEN)
        kept += AFTER if number == len(result.media) else []
        joined = text[: len(kept)] if number == 0 else text[len(text) - len(kept) :]
        if 0 < number < len(result.media):
            joined = [token for token in text if token in kept]
        assert joined == kept, f"{case}: the text before image {number} is {text}, and must have {kept}"


def _check_several(media_case: _MediaCase, processor: MediaProcessor, images: Sequence[bytes]) -> None:
    prompt_images = [images[0], images[1], images[0]]
    result = media_case.prompt(processor, prompt_images)
    assert len(result.media) == len(prompt_images), (
        f"a prompt with {len(prompt_images)} images has {len(result.media)} media"
    )
    ends = 0
    for number, media in enumerate(result.media):
        assert media.start >= ends, f"image {number} begins at {media.start}, before the end {ends} of the one before"
        ends = media.end
    _check_placement(result, f"a prompt with {len(prompt_images)} images")
    kinds: tuple[Callable[[list[int]], Sequence[int]], ...] = (tuple, lambda tokens: array("q", tokens))
    for kind in kinds:
        other = media_case.prompt(processor, prompt_images, kind(media_case.tokens(len(prompt_images))))
        assert list(other.tokens) == list(result.tokens), "prompt() depends on the kind of sequence that tokens are"
    first, second, again = (media.digest for media in result.media)
    assert first == again, "an image that appears twice in a prompt has two digests"
    assert first != second, "different images of one prompt have the same digest"


def _check_refusals(media_case: _MediaCase, processor: MediaProcessor, image: bytes) -> None:
    text = [*BEFORE, *AFTER]
    _check_refused(media_case, processor, [image], text, "an image without a placeholder")
    _check_refused(
        media_case, processor, [], [*BEFORE, media_case.placeholder, *AFTER], "a placeholder without an image"
    )
    _check_refused(media_case, processor, [image], media_case.tokens(2), "two placeholders and one image")
    for damage, data in {
        "empty": b"",
        "text": b"no image at all",
        "cut off": image[: len(image) // 2],
        "zeros": bytes(100),
    }.items():
        _check_refused(media_case, processor, [data], None, f"an unreadable image ({damage})")
    error = _check_refused(media_case, processor, [image, b"broken"], None, "a readable image and an unreadable one")
    assert error.index in (None, 1), f"the unreadable image is number 1, and the error names {error.index}"


def _check_limits(media_case: _MediaCase, images: Sequence[bytes]) -> None:
    whole = media_case.prompt(media_case.made(MediaLimits()), [images[0]]).media[0]
    for limit, limits, prompt_images in (
        ("count=1", MediaLimits(count=1), list(images[:2])),
        ("bytes", MediaLimits(bytes=len(images[0]) - 1), [images[0]]),
        ("pixels=1", MediaLimits(pixels=1), [images[0]]),
        ("request_pixels=1", MediaLimits(request_pixels=1), [images[0]]),
        ("tokens", MediaLimits(tokens=whole.count - 1), [images[0]]),
    ):
        _check_refused(media_case, media_case.made(limits), prompt_images, None, f"images beyond the limit {limit}")
    both = list(images[:2])
    count = sum(media.count for media in media_case.prompt(media_case.made(MediaLimits()), both).media)
    exact = MediaLimits(count=2, bytes=max(map(len, both)), tokens=count)
    error = refusal_of(lambda: media_case.ask(media_case.made(exact), both, None), MediaError, "two images")
    assert error is None, f"two images that are as many and as large as count, bytes and tokens allow: {error}"
    short = media_case.made(MediaLimits(tokens=count - 1))
    _check_refused(media_case, short, both, None, "two images that only together are beyond the limit tokens")
    min_pixels = [_min_pixels(media_case, [image]) for image in images[:2]]
    together = media_case.made(MediaLimits(request_pixels=sum(min_pixels) - 1))
    _check_refused(
        media_case, together, images[:2], None, "two images that only together are beyond the limit request_pixels"
    )


def _min_pixels(media_case: _MediaCase, images: Sequence[bytes]) -> int:
    """Return the minimum ``request_pixels`` under which ``images`` are accepted."""

    def accepts(pixels: int) -> bool:
        try:
            media_case.made(MediaLimits(request_pixels=pixels)).prompt(media_case.tokens(len(images)), images)
        except MediaError:
            return False
        return True

    refused, accepted, limit = 0, FIRST_PIXELS, MediaLimits().request_pixels
    while accepted < limit and not accepts(accepted):
        refused, accepted = accepted, min(accepted << 4, limit)
    while accepted - refused > 1:
        middle = (refused + accepted) // 2
        refused, accepted = (refused, middle) if accepts(middle) else (middle, accepted)
    return accepted


def _check_refused(
    media_case: _MediaCase, processor: MediaProcessor, images: Sequence[bytes], tokens: list[int] | None, case: str
) -> MediaError:
    error = refusal_of(lambda: media_case.ask(processor, images, tokens), MediaError, case)
    assert error is not None, f"{case} must be refused with MediaError"
    return error
