"""The bytes of a block, and its way between them and the rows of the KV pool."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_plug import AsyncHostCopy, KVBlockPart, KVPool, send, upload

BlockKeySequence = Sequence[bytes]


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """The layout of a block: for each layer the keys of its tokens, then their values.

    ::

        | keys of layer 0: tokens x key_bytes | values: tokens x value_bytes | keys of layer 1 ...

    Numbers are those of the KV pool. A pool with ``values_in_keys`` has no values of its own. Blocks of a model without
    attention have no bytes, and are not stored.
    """

    tokens: int
    layers: int
    key_bytes: int
    """Bytes of the keys of one token in one layer."""
    value_bytes: int
    """Bytes of its values; 0 with ``values_in_keys``."""

    @classmethod
    def of(cls, kv: KVPool, tokens: int) -> BlockLayout:
        """Return the layout of blocks of ``tokens`` tokens of a pool."""
        if not kv.k:
            return cls(tokens, 0, 0, 0)
        keys, values = kv.k[0], kv.v[0]
        value_bytes = 0 if kv.values_in_keys else values[0].numel() * values.element_size()
        return cls(tokens, len(kv.k), keys[0].numel() * keys.element_size(), value_bytes)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in all layers."""
        return self.layers * (self.key_bytes + self.value_bytes)

    @property
    def layer_bytes(self) -> int:
        """Bytes of a block in one layer."""
        return self.tokens * (self.key_bytes + self.value_bytes)

    @property
    def bytes(self) -> int:
        """Bytes of a block."""
        return self.tokens * self.token_bytes

    def describe(self) -> str:
        """Return a text that is equal for equal layouts."""
        return f"{self.tokens} {self.layers} {self.key_bytes} {self.value_bytes}"

    def copy_out(self, kv: KVPool, slots: Sequence[int]) -> AsyncHostCopy:
        """Queue copies of the rows of ``slots``, whole blocks, and return them: one tensor per layer and part."""
        with torch.inference_mode():
            index = upload(slots, torch.int64, kv.k[0].device)
            return AsyncHostCopy.of(*(rows.index_select(0, index) for rows in _parts(kv)))

    def blocks(self, copies: Sequence[Tensor]) -> list[memoryview]:
        """Return the blocks, or their parts of one layer, in what was copied, each in memory of its own."""
        parts = [copy.view(torch.uint8).view(-1, self.tokens * self._row_bytes(n)) for n, copy in enumerate(copies)]
        return [torch.cat([part[number] for part in parts]).numpy().data for number in range(parts[0].shape[0])]

    def copy_layer(self, kv: KVPool, slots: Tensor, layer: int) -> AsyncHostCopy:
        """Queue copies of the rows of ``slots`` int64 on the device, whole blocks, in one layer."""
        count = self._parts_per_layer
        return AsyncHostCopy.of(
            *(rows.index_select(0, slots) for rows in _parts(kv)[layer * count : (layer + 1) * count])
        )

    def layer_parts(self, keys: BlockKeySequence, copies: Sequence[Tensor], layer: int) -> list[KVBlockPart]:
        """Return the parts of the blocks with ``keys`` in what ``copy_layer`` copied."""
        start = layer * self.layer_bytes
        return [KVBlockPart(key, start, self.bytes, data) for key, data in zip(keys, self.blocks(copies), strict=True)]

    def rows(self, blocks: Sequence[memoryview], device: torch.device) -> list[Tensor]:
        """Return the rows of ``blocks``: one host tensor per layer and part, ready to be sent to ``device``."""
        contents = [torch.frombuffer(_writable(block), dtype=torch.uint8) for block in blocks]
        rows, start = list[Tensor](), 0
        for number in range(self.layers * self._parts_per_layer):
            row_bytes = self._row_bytes(number)
            end = start + self.tokens * row_bytes
            part = torch.empty(len(contents) * (end - start), dtype=torch.uint8, pin_memory=device.type == "cuda")
            torch.cat([content[start:end] for content in contents], out=part)
            rows.append(_wide(part.view(-1, row_bytes)))
            start = end
        return rows

    def copy_in(self, kv: KVPool, slots: array[int], rows: Sequence[Tensor], first: int) -> None:
        """Queue writing ``rows``, from row ``first`` on, to ``slots``."""
        if not rows:
            return
        device = kv.k[0].device
        with torch.inference_mode():
            index = upload(slots, torch.int64, device)
            for pool, part in zip(_parts(kv), rows, strict=True):
                pool.index_copy_(0, index, send(part[first : first + len(slots)], device))

    @property
    def _parts_per_layer(self) -> int:
        return 2 if self.value_bytes else 1

    def _row_bytes(self, part: int) -> int:
        return self.value_bytes if self.value_bytes and part % 2 else self.key_bytes


def _parts(kv: KVPool) -> list[Tensor]:
    """Return views ``[slots, numbers]`` of all parts of a pool, in the order of the layout."""
    return [_wide(part.view(part.shape[0], -1)) for part in kv.parts]


def _wide(rows: Tensor) -> Tensor:
    """View rows as numbers that every device copies, few per row; not all devices copy rows of float8."""
    row_bytes = rows.shape[1] * rows.element_size()
    return rows.view(torch.int64 if row_bytes % 8 == 0 else torch.uint8)


def _writable(block: memoryview) -> memoryview | bytearray:
    """Return memory that torch can refer to, which must be writable; it is not written."""
    return bytearray(block) if block.readonly else block
