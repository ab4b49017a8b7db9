"""The media contract: images and similar inputs in a prompt, and the processor that tokenizes them. Torch-free.

The core knows no format. The API process passes the bytes that a caller sent to a ``MediaProcessor`` of the model's
family; the result crosses to the engine as named arrays, which only the model interprets.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sglang_plug.deprecation import warn_deprecated

KEY_BYTES = 8
INPUT_EMBEDS = "input_embeds"
"""Name of the array of input embeddings."""


class MediaError(ValueError):
    """An item of media cannot be read, or does not fit the prompt; ``index`` is the number of the item, from 0."""

    def __init__(self, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index


@dataclass(frozen=True, slots=True)
class MediaArray:
    """An array as plain data, in C order and the machine's byte order."""

    dtype: str
    """The name of the dtype in torch and numpy: ``float32``, ``int64``."""
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True)
class Media:
    """An image, or a similar input, and its position in a prompt."""

    start: int
    """Position in the prompt of the first of its tokens."""
    count: int
    """Number of its tokens. Their ids are the model's placeholder."""
    digest: bytes
    """A digest of ``arrays``; prompts share cached prefixes only if the digests are equal."""
    arrays: Mapping[str, MediaArray] = field(default_factory=dict)
    is_encoded: bool = False
    """True if no encoder runs: the only array, ``[count, hidden]``, replaces the embeddings."""

    @classmethod
    def of_input_embeds(cls, start: int, embeds: MediaArray) -> Media:
        """Make media of input embeddings ``[count, hidden]``, for a model with ``Model.input_embeds_width``."""
        media = cls.of(start, embeds.shape[0], {INPUT_EMBEDS: embeds})
        return cls(start=start, count=media.count, digest=media.digest, arrays=media.arrays, is_encoded=True)

    @classmethod
    def of_states(cls, start: int, states: MediaArray) -> Media:
        """Deprecated name of ``of_input_embeds``."""
        warn_deprecated("Media.of_states is now Media.of_input_embeds")
        return cls.of_input_embeds(start, states)

    @classmethod
    def of(cls, start: int, count: int, arrays: Mapping[str, MediaArray]) -> Media:
        """Make media of ``arrays``, with their digest."""
        digest = hashlib.sha256()
        for name, item in sorted(arrays.items()):
            digest.update(f"{name} {item.dtype} {item.shape} ".encode())
            digest.update(item.data)
        return cls(start=start, count=count, digest=digest.digest(), arrays=arrays)

    @property
    def end(self) -> int:
        """Position after the last of its tokens."""
        return self.start + self.count

    @property
    def size(self) -> int:
        """Bytes of its arrays."""
        return sum(len(item.data) for item in self.arrays.values())

    def keys(self) -> list[int]:
        """Return a negative number for each token; the prefix cache identifies the content by these."""
        numbers = array("q", hashlib.shake_256(self.digest).digest(KEY_BYTES * self.count))
        return [-1 - (number & 0x7FFF_FFFF_FFFF_FFFF) for number in numbers]


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaLimits:
    """Limits of the media of one request; a processor checks them before it spends time and memory."""

    count: int = 32
    """Greatest number of images."""
    bytes: int = 16 << 20
    """Greatest size of each image as it was sent (without base64)."""
    pixels: int = 32_000_000
    """Greatest number of pixels of each image, as its header states them."""
    request_pixels: int = 128_000_000
    """Greatest number of pixels of all images of a prompt together, as their headers state them."""
    tokens: int = 16384
    """Greatest number of tokens of all images together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSource:
    """The arguments that a media processor is built from."""

    path: Path
    """The checkpoint's folder."""
    limits: MediaLimits = field(default=MediaLimits())


@dataclass(frozen=True, slots=True)
class MediaPrompt:
    """A prompt in which every image has as many tokens as it needs."""

    tokens: list[int]
    media: tuple[Media, ...]


class MediaProcessor(Protocol):
    """Builds a prompt from tokens and images, in the API process. Called from several threads at once."""

    def prompt(self, tokens: Sequence[int], images: Sequence[bytes]) -> MediaPrompt:
        """Return the prompt for ``tokens``, which hold one placeholder for each of ``images`` (files as they were
        sent).

        Raises ``MediaError`` if an image cannot be read or is too large, or if the number of placeholders is not the
        number of images.
        """


class MediaProcessorLoader(Protocol):
    """The target of a ``MediaProcessorSpec``."""

    def __call__(self, source: MediaSource) -> MediaProcessor:
        """Load the processor for the checkpoint at ``source``. Raises ``ConfigError`` if something is missing."""
