"""Sources of the images that requests only refer to: they are read before any image is decoded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from sglang_plug import MediaError
from sglang_plug_api.answers.errors import SHOWN
from sglang_plug_api.options.config import MediaSourcesConfig
from sglang_plug_api.service.gather import gather

from .fetching import ByteBudget, Fetcher
from .images import ImageFile, RequestImage
from .local_files import LocalFiles
from .url_rules import UrlRules

CONCURRENT_FETCHES = 8
"""Images of one prompt that are fetched at the same time."""
WEB = ("http://", "https://")
LOCAL = "file://"


class ImageSources:
    """Reads images from the sources besides the request itself.

    Args:
        config: the sources that the operator allows.
        per_file: maximum number of bytes of one image.
        total: maximum number of bytes of all images that one prompt refers to.

    Raises ``ConfigError`` if ``config`` has an invalid source.
    """

    def __init__(self, config: MediaSourcesConfig, *, per_file: int, total: int) -> None:
        rules = UrlRules(config.domains, config.networks)
        self._fetcher = None if rules.is_empty else Fetcher(rules, config.timeout)
        self._folder = LocalFiles(config.folder)
        self._per_file, self._total = per_file, total

    async def fetch_images(self, images: Sequence[RequestImage]) -> list[RequestImage]:
        """Return ``images`` with the bytes of those that are not in the request. Raises ``ApiError``."""
        budget, turn = ByteBudget(self._per_file, self._total), asyncio.Semaphore(CONCURRENT_FETCHES)

        async def load(image: RequestImage) -> RequestImage:
            if not image.needs_fetch:
                return image
            async with turn:
                return replace(image, source=await self._read(image, budget))

        return await gather(map(load, images))

    async def _read(self, image: RequestImage, budget: ByteBudget) -> bytes:
        source = image.source
        try:
            if isinstance(source, ImageFile):
                content = await source.read(self._per_file)
            elif self._fetcher is not None and source[:8].lower().startswith(WEB):
                return await self._fetcher.fetch(source, budget)
            elif not self._folder.is_empty and source[:7].lower() == LOCAL:
                content = await asyncio.to_thread(self._folder.read, source, self._per_file)
            else:
                raise MediaError(
                    f"this server fetches no such addresses ({source[:SHOWN]!r}); send the image itself, as "
                    "data:image/png;base64,… or as bare base64"
                )
            budget.take(len(content), len(content))
        except MediaError as error:
            raise image.error(str(error)) from None
        return content
