"""Images in requests: where they stand, and the files that they are."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from .errors import SHOWN, ApiError
from .protocol.openai import Message, refuse_part

BLANKS = str.maketrans("", "", " \t\r\n")
ADDRESSES = ("http://", "https://", "file://", "ftp://", "s3://")


@runtime_checkable
class ImageFile(Protocol):
    """An image that the server has already, but not in memory."""

    async def read(self, most: int) -> bytes:
        """The file. Raises ``MediaError`` if there is none, or one of more than ``most`` bytes."""


@dataclass(frozen=True, slots=True)
class GivenImage:
    """An image as a request has it."""

    where: str
    """Its place in the request, for errors."""
    source: Any
    """Base64 text, a ``data:`` address, another address, an ``ImageFile``, or bytes."""

    @property
    def is_elsewhere(self) -> bool:
        """True if it has to be fetched before it can be read."""
        return isinstance(self.source, ImageFile) or (
            isinstance(self.source, str) and self.source[:8].lower().startswith(ADDRESSES)
        )

    def read(self, most: int) -> bytes:
        """The file. Raises ``ApiError`` if this is none, or one of more than ``most`` bytes."""
        if isinstance(self.source, bytes):
            return self.source
        if not isinstance(self.source, str) or self.is_elsewhere:
            raise self.error("an image is base64 text or a data: address")
        text = self._encoded()
        if len(text) * 3 // 4 > most + 2:
            raise self.error(f"an image has more than {most} bytes, the most that is read")
        try:
            found = base64.b64decode(text.translate(BLANKS), validate=True)
        except (binascii.Error, ValueError) as error:
            raise self.error(f"an image is not valid base64: {error}") from None
        if not found:
            raise self.error("an image is empty")
        return found

    def error(self, message: str) -> ApiError:
        """The refusal of this image."""
        return ApiError(f"{self.where}: {message}", param=self.where)

    def _encoded(self) -> str:
        text: str = self.source
        if not text[:5].lower() == "data:":
            return text
        head, comma, encoded = text.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise self.error(f"a data: address of an image has the form data:image/png;base64,…, not {text[:SHOWN]!r}")
        return encoded


def of_messages(messages: Sequence[Message], *, sees: bool) -> list[GivenImage]:
    """The images of a conversation, in order. Raises ``ApiError`` for other parts, or if the model does not see."""
    found = []
    for index, message in enumerate(messages):
        for place, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if part.get("type") == "text":
                continue
            if not sees:
                raise ApiError(f"messages: {refuse_part(index, part)}", param="messages")
            given = part.get("image_url")
            where = f"messages.{index}.content.{place}"
            found.append(GivenImage(where, given.get("url") if isinstance(given, Mapping) else given))
    return found


def of_prompts(given: Any, prompts: int, *, batch: bool) -> list[list[GivenImage]]:
    """The images of each of ``prompts`` in ``image_data``: one, a list, or in a ``batch`` an entry for each prompt.

    Raises ``ApiError`` if there are not as many entries.
    """
    if not given:
        return [[] for _ in range(prompts)]
    if not batch:
        return [_listed(given, "image_data")]
    if not isinstance(given, list) or len(given) != prompts:
        entries = f"{len(given)} entries" if isinstance(given, list) else "one image"
        raise ApiError(f"image_data has {entries} for {prompts} prompts", param="image_data")
    return [_listed(one, f"image_data.{index}") for index, one in enumerate(given)]


def _listed(given: Any, where: str) -> list[GivenImage]:
    if given is None:
        return []
    if isinstance(given, list):
        return [GivenImage(f"{where}.{place}", one) for place, one in enumerate(given)]
    return [GivenImage(where, given)]
