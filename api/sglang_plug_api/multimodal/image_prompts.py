"""Prompts with images, prepared outside of the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import AsyncIterator, Sequence

from sglang_plug import Media, MediaError, MediaLimits, MediaProcessor, MediaPrompt
from sglang_plug.system.library_panics import raise_panic_as_error
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.service.request_context import current_request_context

from .image_sources import ImageSources
from .images import RequestImage

MAX_CONCURRENT_DECODES = 4
"""Prompts whose images are decoded at the same time: each takes memory."""
MAX_CONCURRENT_FETCHES = 16
"""Prompts whose images are being fetched, or are fetched and wait to be decoded."""
MAX_PREPARED_BYTES = 8 << 30
"""Bytes of images in this process that are prepared but not served yet."""


class PreparedBytes:
    """Counts the bytes of prepared images as long as they are referenced.

    Args:
        limit: bytes at which no further images are prepared.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._lock = limit, threading.RLock()  # images may be freed while it is held
        self.bytes = 0

    def check(self) -> None:
        """Raise ``ApiError`` if the limit is reached."""
        if self.bytes >= self._limit:
            raise ApiError(f"Too many images are being served ({self.bytes} bytes); try again later.", 503)

    def add(self, media: Media) -> None:
        """Count a prepared image until it is freed."""
        self._change(media.size)
        weakref.finalize(media, self._change, -media.size).atexit = False

    def _change(self, count: int) -> None:
        with self._lock:
            self.bytes += count


class ImagePrompts:
    """Makes prompts of tokens and images.

    Args:
        processor: media processor of the model's family.
        limits: limits of one request.
        sources: sources of images besides the request.
        max_prepared_bytes: bytes of images, prepared but not served yet, at which further prompts are refused.
    """

    def __init__(
        self,
        processor: MediaProcessor,
        limits: MediaLimits,
        sources: ImageSources,
        *,
        max_prepared_bytes: int = MAX_PREPARED_BYTES,
    ) -> None:
        self._processor = processor
        self._limits = limits
        self._sources = sources
        self.prepared = PreparedBytes(max_prepared_bytes)
        self._decoding = asyncio.Semaphore(MAX_CONCURRENT_DECODES)
        self._fetching = asyncio.Semaphore(MAX_CONCURRENT_FETCHES)

    async def prompt(self, tokens: Sequence[int], images: Sequence[RequestImage]) -> MediaPrompt:
        """Return the prompt of ``tokens`` with ``images`` at their placeholders. Raises ``ApiError``."""
        async with self.fetched(images) as fetched:
            return await self._prompt(tokens, fetched)

    @contextlib.asynccontextmanager
    async def fetched(self, images: Sequence[RequestImage]) -> AsyncIterator[Sequence[RequestImage]]:
        """Yield ``images`` with the bytes of those that are not in the request. Raises ``ApiError``.

        The context is one of the ``MAX_CONCURRENT_FETCHES`` as long as it is open, because the bytes stay in memory.
        """
        self._check_count(images)
        if not any(image.needs_fetch for image in images):
            yield images
            return
        context = current_request_context()
        async with contextlib.AsyncExitStack() as stack:

            async def fetch() -> Sequence[RequestImage]:
                await stack.enter_async_context(self._fetching)
                return await self._sources.fetch_images(images)

            if context.preparation is None:
                yield await fetch()
            else:
                yield await context.preparation.unless_aborted(fetch(), is_batch_line=context.is_batch_line)

    async def _prompt(self, tokens: Sequence[int], images: Sequence[RequestImage]) -> MediaPrompt:
        async with self._decoding:
            self.prepared.check()
            return await asyncio.to_thread(self._make, tokens, images)

    def _check_count(self, images: Sequence[RequestImage]) -> None:
        if len(images) > self._limits.count:
            raise ApiError(
                f"the prompt has {len(images)} images; the maximum is {self._limits.count}",
                param=images[0].where.partition(".")[0],
            )

    def _make(self, tokens: Sequence[int], images: Sequence[RequestImage]) -> MediaPrompt:
        files = [image.read(self._limits.bytes) for image in images]
        try:
            prompt = self._processor.prompt(tokens, files)
        except MediaError as error:
            if error.index is not None:
                raise images[error.index].error(str(error)) from None
            raise ApiError(str(error), param=images[0].where.partition(".")[0]) from None
        except BaseException as error:
            raise_panic_as_error(error, "the media processor")
            raise
        for media in prompt.media:
            self.prepared.add(media)
        return prompt
