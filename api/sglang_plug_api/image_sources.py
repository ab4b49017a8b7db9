"""Images that requests only point at: brought here before anything is decoded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from sglang_plug import MediaError

from .addresses import AddressRules
from .config import MediaSourcesConfig
from .errors import SHOWN
from .fetching import Allowance, Fetcher
from .images import GivenImage, ImageFile
from .local_files import LocalFiles
from .together import together

TOGETHER = 8
"""Images of one prompt that are fetched at the same time."""
WEB = ("http://", "https://")
LOCAL = "file://"


class ImageSources:
    """Where images may come from besides the request itself.

    Args:
        config: what the operator allows.
        each: most bytes of an image.
        total: most bytes of the images that one prompt points at.

    Raises ``ConfigError`` if ``config`` names what cannot be.
    """

    def __init__(self, config: MediaSourcesConfig, *, each: int, total: int) -> None:
        rules = AddressRules(config.domains, config.networks)
        self._fetcher = None if rules.is_empty else Fetcher(rules, config.timeout)
        self._folder = LocalFiles(config.folder)
        self._each, self._total = each, total

    async def fetched(self, images: Sequence[GivenImage]) -> list[GivenImage]:
        """``images``, with the bytes of those that are elsewhere. Raises ``ApiError``, which says of which it is."""
        allowance, turn = Allowance(self._each, self._total), asyncio.Semaphore(TOGETHER)

        async def bring(image: GivenImage) -> GivenImage:
            if not image.is_elsewhere:
                return image
            async with turn:
                return replace(image, source=await self._read(image, allowance))

        return await together(map(bring, images))

    async def _read(self, image: GivenImage, allowance: Allowance) -> bytes:
        source = image.source
        try:
            if isinstance(source, ImageFile):
                found = await source.read(self._each)
            elif self._fetcher is not None and source[:8].lower().startswith(WEB):
                return await self._fetcher.fetch(source, allowance)
            elif not self._folder.is_empty and source[:7].lower() == LOCAL:
                found = await asyncio.to_thread(self._folder.read, source, self._each)
            else:
                raise MediaError(
                    f"this server fetches no such addresses ({source[:SHOWN]!r}); send the image itself, as "
                    "data:image/png;base64,… or as bare base64"
                )
            allowance.take(len(found), len(found))
        except MediaError as error:
            raise image.error(str(error)) from None
        return found
