"""What a prompt holds besides text: images and the like, and who makes a prompt of them. Torch-free.

The core knows no format. The API process hands the bytes that a caller sent to a ``MediaProcessor``, which belongs to
the model's family; what it makes of them crosses to the engine as named arrays, which only the model understands.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

KEY_BYTES = 8
GIVEN = "states"


class MediaError(ValueError):
    """Something that a caller sent cannot be read, or does not fit the prompt; ``index`` tells which, from 0."""

    def __init__(self, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index


@dataclass(frozen=True, slots=True)
class MediaArray:
    """An array as plain data, in C order and the machine's byte order."""

    dtype: str
    """As torch and numpy call it: ``float32``, ``int64``."""
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True)
class Media:
    """An image, or something like it, and its place in a prompt."""

    start: int
    """Place of the first of the prompt's tokens that it stands for."""
    count: int
    """How many tokens. Their ids are the model's placeholder."""
    digest: bytes
    """Differs where ``arrays`` differ: prefixes of prompts are shared by it."""
    arrays: Mapping[str, MediaArray] = field(default_factory=dict)
    is_given: bool = False
    """Nothing has to be seen: the one array, ``[count, hidden]``, is what stands instead of embeddings."""

    @classmethod
    def given(cls, start: int, states: MediaArray) -> Media:
        """States that the caller has worked out, for a model with ``Model.states_width``."""
        found = cls.of(start, states.shape[0], {GIVEN: states})
        return cls(start=start, count=found.count, digest=found.digest, arrays=found.arrays, is_given=True)

    @classmethod
    def of(cls, start: int, count: int, arrays: Mapping[str, MediaArray]) -> Media:
        """With the digest of ``arrays``."""
        digest = hashlib.sha256()
        for name, one in sorted(arrays.items()):
            digest.update(f"{name} {one.dtype} {one.shape} ".encode())
            digest.update(one.data)
        return cls(start=start, count=count, digest=digest.digest(), arrays=arrays)

    @property
    def end(self) -> int:
        """Place after the last of its tokens."""
        return self.start + self.count

    @property
    def size(self) -> int:
        """Bytes of its arrays."""
        return sum(len(one.data) for one in self.arrays.values())

    def keys(self) -> list[int]:
        """One number below 0 for each token, by which the prefix cache tells this content from any other."""
        drawn = array("q", hashlib.shake_256(self.digest).digest(KEY_BYTES * self.count))
        return [-1 - (number & 0x7FFF_FFFF_FFFF_FFFF) for number in drawn]


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaLimits:
    """What one request may bring; a processor checks it before it spends time and memory."""

    count: int = 32
    """Images."""
    bytes: int = 16 << 20
    """Of each image, as it was sent (without base64)."""
    pixels: int = 32_000_000
    """Of each image, as its header states them."""
    tokens: int = 16384
    """Of all images together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSource:
    """What a media processor is built from."""

    path: Path
    """The checkpoint's folder."""
    limits: MediaLimits = field(default=MediaLimits())


@dataclass(frozen=True, slots=True)
class MediaPrompt:
    """A prompt in which every image has the places it needs."""

    tokens: list[int]
    media: tuple[Media, ...]


class MediaProcessor(Protocol):
    """Makes a prompt of tokens and images, in the API process. Called from several threads at once."""

    def prompt(self, tokens: Sequence[int], images: Sequence[bytes]) -> MediaPrompt:
        """The prompt for ``tokens``, which hold one placeholder for each of ``images`` (files as they were sent).

        Raises ``MediaError`` if an image cannot be read or is too large, or if there are not as many placeholders as
        images.
        """


class MediaProcessorLoader(Protocol):
    """The target of a ``MediaProcessorSpec``."""

    def __call__(self, source: MediaSource) -> MediaProcessor:
        """Load the processor for the checkpoint at ``source``. Raises ``ConfigError`` if it lacks what is needed."""
