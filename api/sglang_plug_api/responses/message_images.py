"""Images in the messages of a conversation, which are split from the messages for the chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_plug import ContentMissing, MediaError
from sglang_plug_api.answers.errors import SHOWN, ApiError
from sglang_plug_api.batches.records import IMAGE_PURPOSES
from sglang_plug_api.multimodal.images import RequestImage
from sglang_plug_api.protocol.items import IMAGE_PART, is_image
from sglang_plug_api.service.callers import current_caller
from sglang_plug_api.stores.storage import Storage

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ImageMessage:
    """A message in the form that the chat template reads, and its images."""

    message: Message
    images: Sequence[RequestImage] = ()


@dataclass(frozen=True, slots=True)
class UploadedImage:
    """An image in a file that a client uploaded."""

    storage: Storage
    id: str
    owner: str | None
    """Owner of the files that may be read; ``None``: any owner."""

    async def read(self, limit: int) -> bytes:
        """Return the file. Raises ``MediaError`` if there is none, or it has more than ``limit`` bytes."""
        try:
            file = await self.storage.client_call(self.storage.store.file(self.id, self.owner))
        except ApiError as error:
            if error.status != 404:
                raise
            raise MediaError(f"there is no file {self.id[:SHOWN]!r} here") from None
        if file.purpose not in IMAGE_PURPOSES:
            known = " or ".join(map(repr, IMAGE_PURPOSES))
            raise MediaError(f"file {file.id!r} has purpose {file.purpose!r}; an image has {known}")
        if file.bytes > limit:
            raise MediaError(f"an image has more than {limit} bytes, the maximum")
        try:
            return await self.storage.client_call(self._content(file.id))
        except ContentMissing:  # deleted meanwhile
            raise MediaError(f"there is no file {self.id[:SHOWN]!r} here") from None

    async def _content(self, id: str) -> bytes:
        return b"".join([part async for part in self.storage.store.read_content(id)])


def split_images(
    messages: Sequence[Message], storage: Storage, *, supports_images: bool, where: str | None = None
) -> list[ImageMessage]:
    """Return the messages with their images; ``where`` is the field to name for images of an earlier request.

    Raises ``ApiError`` if there is an image, but the model takes text only.
    """
    return [_split_message(message, storage, supports_images, where) for message in messages]


def without_images(message: Message) -> Message:
    """Return the message in the form that the chat template reads."""
    content = message["content"]
    if isinstance(content, str):
        return message
    return {**message, "content": [{"type": "image"} if is_image(part) else part for part in content]}


def _split_message(message: Message, storage: Storage, supports_images: bool, where: str | None) -> ImageMessage:
    content = message["content"]
    if isinstance(content, str):
        return ImageMessage(message)
    images = [part for part in content if is_image(part)]
    if not supports_images:
        field = where or images[0]["where"].rpartition(".")[0]
        raise ApiError(
            f"{field}: a content part has type {IMAGE_PART!r}; this model takes text parts only", param=field
        )
    return ImageMessage(without_images(message), [_request_image(part, storage, where) for part in images])


def _request_image(part: Mapping[str, Any], storage: Storage, where: str | None) -> RequestImage:
    id = part["file_id"]
    source = part["image_url"] if id is None else UploadedImage(storage, id, current_caller().scope)
    return RequestImage(where or part["where"], source)
