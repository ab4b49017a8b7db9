"""The bytes of the states of a prefix, and their way between them and the extensions that own the states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

from sglang_plug import SequenceView, StatePhase, StateShape, pinned
from sglang_plug.contracts.serving.kv_store import KEY_BYTES
from sglang_plug.ops.host_device_copy import Fetched


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The states that a sequence needs after a prefix: the tensors of each extension, one after the other.

    Layouts of models that need none have ``bytes == 0``.
    """

    owners: tuple[tuple[StatePhase, tuple[StateShape, ...]], ...]
    """The extensions, and the shapes of their tensors, whose dtypes are given."""

    @classmethod
    def of(cls, extensions: Sequence[StatePhase], tokens: int) -> StateLayout:
        """Return the layout of the states of ``extensions``, which are stored at multiples of ``tokens`` tokens."""
        shapes = [(extension, tuple(extension.stored_tensors(tokens))) for extension in extensions]
        return cls(tuple(owner for owner in shapes if owner[1]))

    @property
    def bytes(self) -> int:
        """Bytes of the states after one prefix."""
        return sum(map(_bytes, self._shapes))

    def key(self, block: bytes) -> bytes:
        """Return the key of the states after the block with the key ``block``."""
        return blake2b(f"states {self._described}".encode(), digest_size=KEY_BYTES, key=block).digest()

    def copy_out(self, sequence: SequenceView, length: int) -> Fetched | None:
        """Queue copies of the states after ``length`` tokens; ``None`` if one of them is not saved."""
        parts = [owner.copy_state(sequence, length) for owner, _ in self.owners]
        return Fetched.of(*(tensor for part in parts for tensor in part)) if all(parts) else None

    def encode(self, tensors: Sequence[Tensor]) -> memoryview:
        """Return the bytes of what ``copy_out`` copied."""
        parts = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]
        return torch.cat(parts).numpy().data

    def decode(self, data: memoryview, device: torch.device) -> list[Tensor]:
        """Return host tensors with the bytes ``data``, ready to be sent to ``device``."""
        content = torch.frombuffer(bytearray(data) if data.readonly else data, dtype=torch.uint8)
        parts = content.split(list(map(_bytes, self._shapes)))
        return [
            pinned(part.clone().view(shape.dtype).view(shape.shape), device)  # a copy is aligned
            for part, shape in zip(parts, self._shapes, strict=True)
        ]

    def restore(self, sequence: SequenceView, length: int, tensors: Sequence[Tensor]) -> bool:
        """Let the extensions save their states after ``length`` tokens; return False if one of them has no room."""
        start, restored = 0, True
        for owner, shapes in self.owners:
            restored &= owner.restore_state(sequence, length, tensors[start : start + len(shapes)])
            start += len(shapes)
        return restored

    @property
    def _shapes(self) -> list[StateShape]:
        return [shape for _, shapes in self.owners for shape in shapes]

    @property
    def _described(self) -> str:
        return " ".join(f"{shape.dtype}{list(shape.shape)}" for shape in self._shapes)


def _bytes(shape: StateShape) -> int:
    assert shape.dtype is not None, "StatePhase.stored_tensors() must give every dtype"
    return math.prod(shape.shape) * shape.dtype.itemsize
