"""Prompts with images, made outside of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sglang_plug import MediaError, MediaLimits, MediaProcessor, MediaPrompt

from .errors import ApiError
from .images import GivenImage

AT_ONCE = 4
"""Prompts whose images are decoded together: each takes memory."""


class Sight:
    """What makes prompts of tokens and images.

    Args:
        processor: of the model's family.
        limits: of one request.
    """

    def __init__(self, processor: MediaProcessor, limits: MediaLimits) -> None:
        self._processor, self._limits = processor, limits
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def prompt(self, tokens: Sequence[int], images: Sequence[GivenImage]) -> MediaPrompt:
        """The prompt of ``tokens`` with ``images`` in their places. Raises ``ApiError``."""
        if len(images) > self._limits.count:
            raise ApiError(
                f"the prompt has {len(images)} images; the most is {self._limits.count}",
                param=images[0].where.partition(".")[0],
            )
        async with self._turn:
            return await asyncio.to_thread(self._make, tokens, images)

    def _make(self, tokens: Sequence[int], images: Sequence[GivenImage]) -> MediaPrompt:
        files = [one.read(self._limits.bytes) for one in images]
        try:
            return self._processor.prompt(tokens, files)
        except MediaError as error:
            if error.index is not None:
                raise images[error.index].error(str(error)) from None
            raise ApiError(str(error), param=images[0].where.partition(".")[0]) from None
