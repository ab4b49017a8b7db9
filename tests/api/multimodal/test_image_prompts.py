"""Tests of the preparation of prompts with images: limits, order and errors."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from sglang_plug import Media, MediaArray, MediaError, MediaLimits, MediaPrompt
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.multimodal.image_prompts import MAX_CONCURRENT_DECODES, MAX_CONCURRENT_FETCHES, ImagePrompts
from sglang_plug_api.multimodal.image_sources import ImageSources
from sglang_plug_api.multimodal.images import RequestImage
from sglang_plug_api.options.config import MediaSourcesConfig
from sglang_plug_api.service.gather import gather


class Processor:
    """A media processor with one token for each image, which records the maximum number of concurrent threads."""

    def __init__(self) -> None:
        self.running, self.max_running, self._lock = 0, 0, threading.Lock()

    def prompt(self, tokens: Sequence[int], images: Sequence[bytes]) -> MediaPrompt:
        with self._lock:
            self.running += 1
            self.max_running = max(self.max_running, self.running)
        try:
            if b"bad" in images:
                raise MediaError("it is bad", images.index(b"bad"))
            if b"odd" in images:
                raise MediaError("they do not fit")
            arrays = ({"x": MediaArray("uint8", (len(image),), image)} for image in images)
            return MediaPrompt([9] * len(images), tuple(Media.of(at, 1, array) for at, array in enumerate(arrays)))
        finally:
            with self._lock:
                self.running -= 1


class Uploaded:
    async def read(self, limit: int) -> bytes:
        return b"uploaded"


def image_prompts(processor: Any = None, count: int = 4, **options: int) -> ImagePrompts:
    limits, sources = MediaLimits(count=count, bytes=100), ImageSources(MediaSourcesConfig(), per_file=100, total=100)
    return ImagePrompts(processor or Processor(), limits, sources, **options)


def images(*sources: Any) -> list[RequestImage]:
    return [RequestImage(f"messages.{index}", source) for index, source in enumerate(sources)]


async def test_prompts() -> None:
    prompt = await image_prompts().prompt([9, 9], images(b"one", Uploaded()))
    assert [media.arrays["x"].data for media in prompt.media] == [b"one", b"uploaded"]


async def test_errors_name_the_image() -> None:
    for inputs, where, words in (
        (images(b"one", b"bad"), "messages.1", "messages.1: it is bad"),
        (images(b"odd"), "messages", "they do not fit"),
        (images(b"", "?"), "messages.1", "not valid base64"),
        (images(*[b""] * 5), "messages", "has 5 images; the maximum is 4"),
        (images(*[Uploaded()] * 5), "messages", "has 5 images; the maximum is 4"),
    ):
        with pytest.raises(ApiError, match=words) as caught:
            await image_prompts().prompt([9], inputs)
        assert (caught.value.param, caught.value.status) == (where, 400)


async def test_only_some_are_prepared_together() -> None:
    processor = Processor()
    prompts = image_prompts(processor)
    await gather(prompts.prompt([9], images(b"x")) for _ in range(40))
    assert 1 <= processor.max_running <= MAX_CONCURRENT_DECODES


async def test_fetched_images_count_until_they_are_used() -> None:
    prompts = image_prompts()
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(MAX_CONCURRENT_FETCHES):
            fetched = await stack.enter_async_context(prompts.fetched(images(Uploaded())))
        waiting = asyncio.ensure_future(prompts.prompt([9], images(Uploaded())))
        prompt = await prompts.prompt([9], fetched)  # already fetched, so it does not wait
        assert prompt.media[0].arrays["x"].data == b"uploaded" and not waiting.done()
    assert len((await waiting).media) == 1


async def test_images_that_need_no_fetch_do_not_count() -> None:
    prompts = image_prompts()
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(MAX_CONCURRENT_FETCHES + 1):
            uploaded = images(b"one")
            assert await stack.enter_async_context(prompts.fetched(uploaded)) == uploaded


async def becomes(prompts: ImagePrompts, count: int) -> bool:
    """Wait for prepared prompts of ``count`` bytes, and return whether they came.

    The thread that made a prompt frees it a moment later.
    """
    for _ in range(1000):
        gc.collect()
        if prompts.prepared.bytes == count:
            return True
        await asyncio.sleep(0.01)
    return False


async def test_prepared_images_count_as_long_as_somebody_has_them() -> None:
    prompts = image_prompts(max_prepared_bytes=150)
    first = await prompts.prompt([9], images(bytes(100)))
    assert prompts.prepared.bytes == 100
    second = await prompts.prompt([9, 9], images(bytes(50), bytes(10)))
    with pytest.raises(ApiError, match="Too many images are being served .160 bytes.; try again later") as caught:
        await prompts.prompt([9], images(b"x"))
    assert caught.value.status == 503
    media = second.media[:1]
    del second, caught
    assert await becomes(prompts, 150) and len(media) == 1
    del first
    assert await becomes(prompts, 50)
    assert len((await prompts.prompt([9], images(b"x"))).media) == 1
    assert await becomes(prompts, 50)
