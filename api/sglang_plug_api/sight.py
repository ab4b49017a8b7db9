"""Prompts with images, made outside of the event loop."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Sequence

from sglang_plug import Media, MediaError, MediaLimits, MediaProcessor, MediaPrompt

from .errors import ApiError
from .image_sources import ImageSources
from .images import GivenImage

AT_ONCE = 4
"""Prompts whose images are decoded together: each takes memory."""
FETCHED_AT_ONCE = 16
"""Prompts whose images are fetched, or wait fetched to be decoded."""
MOST_PREPARED = 8 << 30
"""Bytes of images in this process that are prepared and not yet served."""


class Prepared:
    """Counts the bytes of prepared images for as long as anybody has them.

    Args:
        most: bytes from which on no more are prepared.
    """

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self.bytes = 0

    def check(self) -> None:
        """Raises ``ApiError`` if there are too many."""
        if self.bytes >= self._most:
            raise ApiError(f"Too many images are being served ({self.bytes} bytes); try again later.", 503)

    def add(self, media: Media) -> None:
        """Count one."""
        self._change(media.size)
        weakref.finalize(media, self._change, -media.size).atexit = False

    def _change(self, count: int) -> None:
        with self._lock:
            self.bytes += count


class Sight:
    """What makes prompts of tokens and images.

    Args:
        processor: of the model's family.
        limits: of one request.
        sources: where images may come from besides the request.
    """

    def __init__(self, processor: MediaProcessor, limits: MediaLimits, sources: ImageSources) -> None:
        self._processor, self._limits, self._sources = processor, limits, sources
        self.prepared = Prepared(MOST_PREPARED)
        self._turn, self._fetching = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(FETCHED_AT_ONCE)

    async def prompt(self, tokens: Sequence[int], images: Sequence[GivenImage]) -> MediaPrompt:
        """The prompt of ``tokens`` with ``images`` in their places. Raises ``ApiError``."""
        if not any(image.is_elsewhere for image in images):
            return await self._prompt(tokens, images)
        async with self._fetching:
            return await self._prompt(tokens, await self.fetched(images))

    async def fetched(self, images: Sequence[GivenImage]) -> list[GivenImage]:
        """``images``, with the bytes of those that are elsewhere. Raises ``ApiError``."""
        self._check_count(images)
        return await self._sources.fetched(images)

    async def _prompt(self, tokens: Sequence[int], images: Sequence[GivenImage]) -> MediaPrompt:
        self._check_count(images)
        async with self._turn:
            self.prepared.check()
            return await asyncio.to_thread(self._make, tokens, images)

    def _check_count(self, images: Sequence[GivenImage]) -> None:
        if len(images) > self._limits.count:
            raise ApiError(
                f"the prompt has {len(images)} images; the most is {self._limits.count}",
                param=images[0].where.partition(".")[0],
            )

    def _make(self, tokens: Sequence[int], images: Sequence[GivenImage]) -> MediaPrompt:
        files = [one.read(self._limits.bytes) for one in images]
        try:
            prompt = self._processor.prompt(tokens, files)
        except MediaError as error:
            if error.index is not None:
                raise images[error.index].error(str(error)) from None
            raise ApiError(str(error), param=images[0].where.partition(".")[0]) from None
        for one in prompt.media:
            self.prepared.add(one)
        return prompt
