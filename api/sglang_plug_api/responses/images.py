"""Images of a conversation: told apart from what the chat template reads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_plug import MediaError
from sglang_plug_api.batches.models import IMAGE_PURPOSES
from sglang_plug_api.batches.storage import Storage
from sglang_plug_api.errors import SHOWN, ApiError
from sglang_plug_api.images import GivenImage
from sglang_plug_api.protocol.items import IMAGE_PART, is_image

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """A message as the chat template reads it, and its images."""

    message: Message
    images: Sequence[GivenImage] = ()


@dataclass(frozen=True, slots=True)
class UploadedImage:
    """A file that a caller uploaded."""

    storage: Storage
    id: str

    async def read(self, most: int) -> bytes:
        """The file. Raises ``MediaError`` if there is none, or one of more than ``most`` bytes."""
        try:
            found = await self.storage.ask(lambda store: store.file(self.id))
        except ApiError as error:
            if error.status != 404:
                raise
            raise MediaError(f"there is no file {self.id[:SHOWN]!r} here") from None
        if found.purpose not in IMAGE_PURPOSES:
            known = " or ".join(map(repr, IMAGE_PURPOSES))
            raise MediaError(f"file {found.id!r} has purpose {found.purpose!r}; an image has {known}")
        if found.bytes > most:
            raise MediaError(f"an image has more than {most} bytes, the most that is read")
        try:
            return await asyncio.to_thread(Path.read_bytes, self.storage.path(found.id))
        except FileNotFoundError:  # deleted meanwhile
            raise MediaError(f"there is no file {self.id[:SHOWN]!r} here") from None


def turns_of(messages: Sequence[Message], storage: Storage, *, sees: bool, where: str | None = None) -> list[Turn]:
    """The messages, and their images. ``where`` names those of an earlier request, which stand nowhere in this one.

    Raises ``ApiError`` if there is an image, but the model does not see.
    """
    return [_turn(message, storage, sees, where) for message in messages]


def without_images(message: Message) -> Message:
    """As the chat template reads it."""
    content = message["content"]
    if isinstance(content, str):
        return message
    return {**message, "content": [{"type": "image"} if is_image(part) else part for part in content]}


def _turn(message: Message, storage: Storage, sees: bool, where: str | None) -> Turn:
    content = message["content"]
    if isinstance(content, str):
        return Turn(message)
    images = [part for part in content if is_image(part)]
    if not sees:
        field = where or images[0]["where"].rpartition(".")[0]
        raise ApiError(
            f"{field}: a content part has type {IMAGE_PART!r}; this model takes text parts only", param=field
        )
    return Turn(without_images(message), [_given(part, storage, where) for part in images])


def _given(part: Mapping[str, Any], storage: Storage, where: str | None) -> GivenImage:
    source = part["image_url"] if part["file_id"] is None else UploadedImage(storage, part["file_id"])
    return GivenImage(where or part["where"], source)
