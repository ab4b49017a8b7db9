"""The bytes of the states of a prefix, and their way between them and the extensions that own the states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

from sglang_plug import AsyncHostCopy, KVBlock, SequenceView, StateShape, StoredStatePhase, pinned


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The states that a sequence needs after a prefix: the tensors of each extension, one after the other.

    Layouts of models that need none have ``size == 0``.
    """

    owners: tuple[tuple[StoredStatePhase, int], ...]
    """The extensions that need states, and the number of their tensors."""
    shapes: tuple[StateShape, ...]
    """The shapes of all tensors; the dtypes are given."""
    size: int
    """Bytes of the states after one prefix."""
    description: bytes
    """Equal for equal shapes."""

    @classmethod
    def of(cls, extensions: Sequence[StoredStatePhase], tokens: int) -> StateLayout:
        """Return the layout of the states of ``extensions``, which are stored at multiples of ``tokens`` tokens."""
        tensors = [(extension, tuple(extension.stored_tensors(tokens))) for extension in extensions]
        shapes = tuple(shape for _, of_owner in tensors for shape in of_owner)
        described = " ".join(f"{shape.dtype}{list(shape.shape)}" for shape in shapes)
        return cls(
            tuple((owner, len(of_owner)) for owner, of_owner in tensors if of_owner),
            shapes,
            sum(map(_bytes, shapes)),
            described.encode(),
        )

    def key(self, block: bytes) -> bytes:
        """Return the key of the states after the block with the key ``block``."""
        return blake2b(self.description, digest_size=KVBlock.KEY_BYTES, key=block, person=b"state").digest()

    def copy_out(self, sequence: SequenceView, length: int) -> AsyncHostCopy | None:
        """Queue copies of the states after ``length`` tokens; ``None`` if one of them is not saved."""
        parts = [owner.copy_state(sequence, length) for owner, _ in self.owners]
        return AsyncHostCopy.of(*(tensor for part in parts for tensor in part)) if all(parts) else None

    def encode(self, tensors: Sequence[Tensor]) -> memoryview:
        """Return the bytes of what ``copy_out`` copied."""
        parts = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]
        return torch.cat(parts).numpy().data

    def decode(self, data: memoryview, device: torch.device) -> list[Tensor]:
        """Return host tensors with the bytes ``data``, ready to be sent to ``device``."""
        content = torch.frombuffer(bytearray(data) if data.readonly else data, dtype=torch.uint8)
        parts = torch.split(content, list(map(_bytes, self.shapes)))
        return [pinned(_tensor(part, shape), device) for part, shape in zip(parts, self.shapes, strict=True)]

    def restore(self, sequence: SequenceView, length: int, tensors: Sequence[Tensor]) -> bool:
        """Let the extensions save their states after ``length`` tokens; return False if one of them has no room."""
        start, restored = 0, True
        for owner, count in self.owners:
            restored &= owner.restore_state(sequence, length, tensors[start : start + count])
            start += count
        return restored


def _tensor(content: Tensor, shape: StateShape) -> Tensor:
    assert shape.dtype is not None
    return content.clone().view(shape.dtype).view(shape.shape)  # a copy is aligned


def _bytes(shape: StateShape) -> int:
    assert shape.dtype is not None, "StoredStatePhase.stored_tensors() must give every dtype"
    return math.prod(shape.shape) * shape.dtype.itemsize
