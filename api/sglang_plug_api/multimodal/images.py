"""Images in requests: their fields, and their bytes."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from sglang_plug_api.answers.errors import SHOWN, ApiError
from sglang_plug_api.protocol.openai import Message

BLANKS = str.maketrans("", "", " \t\r\n")
ADDRESSES = ("http://", "https://", "file://", "ftp://", "s3://")


@runtime_checkable
class ImageFile(Protocol):
    """An image that the server has stored, but not in memory."""

    async def read(self, limit: int) -> bytes:
        """Return the file. Raises ``MediaError`` if there is none, or it has more than ``limit`` bytes."""


@dataclass(frozen=True, slots=True)
class RequestImage:
    """An image in a request."""

    where: str
    """The field of the request that holds it, for errors."""
    source: Any
    """Base64 text, a ``data:`` address, another address, an ``ImageFile``, or bytes."""

    @property
    def needs_fetch(self) -> bool:
        """True if it must be fetched before it can be read."""
        return isinstance(self.source, ImageFile) or (
            isinstance(self.source, str) and self.source[:8].lower().startswith(ADDRESSES)
        )

    def read(self, limit: int) -> bytes:
        """Return the file. Raises ``ApiError`` if it is invalid, or has more than ``limit`` bytes."""
        if isinstance(self.source, bytes):
            return self.source
        if not isinstance(self.source, str) or self.needs_fetch:
            raise self.error("an image is base64 text or a data: address")
        text = self._encoded()
        if len(text) * 3 // 4 > limit + 2:
            raise self.error(f"an image has more than {limit} bytes, the maximum")
        try:
            content = base64.b64decode(text.translate(BLANKS), validate=True)
        except (binascii.Error, ValueError) as error:
            raise self.error(f"an image is not valid base64: {error}") from None
        if not content:
            raise self.error("an image is empty")
        return content

    def error(self, message: str) -> ApiError:
        """Return a refusal that names this image."""
        return ApiError(f"{self.where}: {message}", param=self.where)

    def _encoded(self) -> str:
        text: str = self.source
        if not text[:5].lower() == "data:":
            return text
        head, comma, encoded = text.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise self.error(f"a data: address of an image has the form data:image/png;base64,…, not {text[:SHOWN]!r}")
        return encoded


def images_of_messages(messages: Sequence[Message], *, supports_images: bool) -> list[RequestImage]:
    """Return the images of a conversation, in order.

    Raises ``ApiError`` for parts of other kinds, or if the model takes text only.
    """
    images = []
    for index, message in enumerate(messages):
        for position, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if part.get("type") == "text":
                continue
            if not supports_images:
                raise ApiError(
                    f"messages: message {index} has a content part of type {part['type']!r}; this model takes text "
                    "parts only",
                    param="messages",
                )
            image_url = part.get("image_url")
            field = f"messages.{index}.content.{position}"
            source = image_url.get("url") if isinstance(image_url, Mapping) else image_url
            images.append(RequestImage(field, source))
    return images


def images_of_prompts(image_data: Any, prompts: int, *, batch: bool) -> list[list[RequestImage]]:
    """Return the images of each prompt: ``image_data`` is one, a list, or in a ``batch`` an entry per prompt.

    Raises ``ApiError`` if the number of entries is wrong.
    """
    if not image_data:
        return [[] for _ in range(prompts)]
    if not batch:
        return [_listed(image_data, "image_data")]
    if not isinstance(image_data, list) or len(image_data) != prompts:
        entries = f"{len(image_data)} entries" if isinstance(image_data, list) else "one image"
        raise ApiError(f"image_data has {entries} for {prompts} prompts", param="image_data")
    return [_listed(images, f"image_data.{index}") for index, images in enumerate(image_data)]


def _listed(images: Any, field: str) -> list[RequestImage]:
    if images is None:
        return []
    if isinstance(images, list):
        return [RequestImage(f"{field}.{index}", image) for index, image in enumerate(images)]
    return [RequestImage(field, images)]
