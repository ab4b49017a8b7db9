"""Recording of a forward pass that is replayed for any smaller number of tokens.

The host takes a tenth of a step of some fifty tokens: between two kernels, the code of the interpreter comes from main
memory, because the kernels need the caches. A replay makes the same library calls without it, each with the number of
tokens of the step. All intermediate results are in one block of memory, in which buffers that are not needed at the
same time overlap.

After the attention of the last layer, rows do not depend on each other any more. If only library calls follow, these
compute only the rows whose results are read: of a prompt that continues in the next step, none.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from sglang_plug import CannotCaptureError, ForwardBatch, TokenReplay

from .calls import AttentionCall, RecordedCall, Tape
from .library import Library
from .memory import LINE
from .recorder import OperationRecording, TorchOperation, storage_of

RECORDED_TOKENS = 509
"""Tokens of a recorded forward pass, the maximum of a replay. It is a prime number: a dimension that it divides
is that of the tokens, not one of the model."""
POINTERS_AND_ROWS: Mapping[str, tuple[int, int]] = {
    "linear": (4, 4),
    "linear_int8": (6, 6),
    "linear_codes4": (6, 6),
    "linear_codes8": (6, 6),
    "linear_e4m3": (5, 5),
    "rms_norm": (4, 4),
    "silu_mul": (2, 2),
    "rope": (4, 4),
}
"""For each function of the library, how many pointers it takes first, and which of its arguments counts the rows."""
ATTENTION_POINTERS = ("q", "k", "v", "out")
"""Fields of the structure of ``attend`` that point to intermediate results."""
ReplayAction = TorchOperation | tuple[Tape, ctypes.Array[RecordedCall]]


@dataclass(slots=True)
class Buffer:
    """Memory of an intermediate result, from its allocation to its last use."""

    address: int
    size: int
    first: int
    last: int
    offset: int = 0
    """Byte of the common block at which it starts."""


class TokenRecording(OperationRecording):
    """The library calls and torch operations of a forward pass of ``RECORDED_TOKENS`` tokens."""

    def __init__(self, library: Library) -> None:
        super().__init__()
        self._library = library
        self._buffers: dict[int, Buffer] = {}
        self._addresses: list[tuple[int, int]] = []
        """Address and key of each buffer, ascending."""
        self._kept: list[Any] = []
        self._time = 0
        self._attention_time = self._attention_actions = 0
        """When the last layer attended, and the number of actions until then."""

    def call(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Record a call of the library. Raises ``CannotCaptureError`` if its rows are not those of the tokens."""
        if name == "attend":
            layer = AttentionCall.from_buffer_copy(AttentionCall.from_address(arguments[0]))
            arguments = (layer,)
            pointers = [getattr(layer, field) for field in ATTENTION_POINTERS]
        elif name in POINTERS_AND_ROWS:
            count, rows = POINTERS_AND_ROWS[name]
            pointers = list(arguments[:count])
            if arguments[rows] % RECORDED_TOKENS or not arguments[rows]:
                raise CannotCaptureError(f"{name} has {arguments[rows]} rows, whatever the number of tokens is")
        else:
            raise CannotCaptureError(f"{name} cannot be replayed for another number of tokens")
        self._time += 1
        for pointer in pointers:
            if (buffer := self._buffer_at(pointer)) is not None:
                buffer.last = self._time
        self._actions.append((name, arguments))
        if name == "attend":
            self._attention_time, self._attention_actions = self._time, len(self._actions)

    def keep(self, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        """Note that an operation uses these tensors, and keep their memory until the recording ends."""
        self._time += 1
        self._kept.append((inputs, outputs))
        known = {storage_of(tensor) for tensor in inputs}
        for tensor in (*inputs, *outputs):
            key = storage_of(tensor)
            if (buffer := self._buffers.get(key)) is not None:
                buffer.last = self._time
            elif key not in known and (size := tensor.untyped_storage().nbytes()):
                address = tensor.untyped_storage().data_ptr()
                self._buffers[key] = Buffer(address, size, self._time, self._time)
                insort(self._addresses, (address, key))

    def finish(self, result: Tensor, inputs: ForwardBatch) -> CallReplay:
        """Return what replays everything.

        ``result``: ``[RECORDED_TOKENS, hidden]``, of the forward pass; ``inputs``: its batch.
        """
        if len(result) != RECORDED_TOKENS:
            raise CannotCaptureError(f"the result has {len(result)} rows for {RECORDED_TOKENS} tokens")
        if (buffer := self._buffers.get(storage_of(result))) is not None:
            buffer.last = self._time + 1
        block = torch.empty(assign_offsets(list(self._buffers.values())), dtype=torch.uint8)
        replay = CallReplay(self._library, block, self._moved(result, block), inputs)
        rowwise = self._rowwise_buffers()
        for index, action in enumerate(self._actions):
            if rowwise is not None and index == self._attention_actions:
                replay.begin_rowwise([rows_of(block, buffer) for buffer in rowwise])
            if isinstance(action, TorchOperation):
                parts = (action.args, action.kwargs, action.outputs)
                args, kwargs, outputs = tree_map(lambda leaf: self._moved(leaf, block), parts)
                replay.add_operation(TorchOperation(action.func, args, kwargs, outputs, action.fresh))
            else:
                name, arguments = action
                replay.add_call(*self._moved_call(name, arguments, block.data_ptr()))
        replay.end_tape()
        return replay

    def _rowwise_buffers(self) -> list[Buffer] | None:
        """Return the buffers that are used after the last attention and were before; ``None``: rows stay together.

        They do if torch operations follow, whose rounding may depend on how many rows they have.
        """
        after = self._actions[self._attention_actions :]
        buffers = [buffer for buffer in self._buffers.values() if buffer.first <= self._attention_time < buffer.last]
        uneven = any(buffer.size % RECORDED_TOKENS for buffer in buffers)
        if not self._attention_actions or uneven or any(isinstance(action, TorchOperation) for action in after):
            return None
        return buffers

    def _buffer_at(self, pointer: int | None) -> Buffer | None:
        """Return the buffer that ``pointer`` points into; ``None``: memory that existed before."""
        index = bisect_right(self._addresses, (pointer or 0, 1 << 63)) - 1
        if pointer is None or index < 0:
            return None
        buffer = self._buffers[self._addresses[index][1]]
        return buffer if pointer < buffer.address + buffer.size else None

    def _moved(self, leaf: Any, block: Tensor) -> Any:
        """Return the tensor in ``block`` that replaces ``leaf``, if that is an intermediate result."""
        if not isinstance(leaf, Tensor) or (buffer := self._buffers.get(storage_of(leaf))) is None:
            return leaf
        first = buffer.offset // leaf.itemsize + leaf.storage_offset()
        return block.view(leaf.dtype).as_strided(leaf.shape, leaf.stride(), first)

    def _moved_call(self, name: str, arguments: tuple[Any, ...], start: int) -> tuple[str, tuple[Any, ...]]:
        """Return a call with the addresses of intermediate results in the block that begins at ``start``."""

        def moved(pointer: int | None) -> int | None:
            buffer = self._buffer_at(pointer)
            if buffer is None or pointer is None:
                return pointer
            return start + buffer.offset + pointer - buffer.address

        if name == "attend":
            (layer,) = arguments
            for field in ATTENTION_POINTERS:
                setattr(layer, field, moved(getattr(layer, field)))
            return name, arguments
        count, _ = POINTERS_AND_ROWS[name]
        return name, (*map(moved, arguments[:count]), *arguments[count:])


class CallReplay(TokenReplay):
    """Replays a recorded forward pass for some number of tokens.

    Args:
        library: makes the calls.
        block: the memory of the intermediate results.
        result: the tensor in ``block`` that the replay computes.
        inputs: the batch whose tokens and positions the recorded operations read.
    """

    def __init__(self, library: Library, block: Tensor, result: Tensor, inputs: ForwardBatch) -> None:
        self._library, self._block, self._result, self._inputs = library, block, result, inputs
        self._tape = Tape()
        self._actions: list[ReplayAction] = []
        self._rowwise_actions: int | None = None
        self._rowwise_inputs: list[Tensor] = []

    @property
    def memory_bytes(self) -> int:
        """Return the size of the block."""
        return self._block.nbytes

    def add_call(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Append a call of the library."""
        if name == "attend":
            self._tape.add(name, (ctypes.addressof(arguments[0]),))
            return
        word = POINTERS_AND_ROWS[name][1]
        self._tape.add(name, arguments, rows_word=word, rows_per_token=arguments[word] // RECORDED_TOKENS)

    def add_operation(self, operation: TorchOperation) -> None:
        """Append a torch operation."""
        self.end_tape()
        self._actions.append(operation)

    def end_tape(self) -> None:
        """Let the next call begin a new tape."""
        if len(self._tape):
            self._actions.append((self._tape, self._tape.packed()))
            self._tape = Tape()

    def begin_rowwise(self, inputs: list[Tensor]) -> None:
        """Say that the following actions compute each row alone, from ``inputs``, which have a row for each token."""
        self.end_tape()
        self._rowwise_actions, self._rowwise_inputs = len(self._actions), inputs

    def run(self, batch: ForwardBatch) -> Tensor:
        """Compute ``[T, hidden]`` of a planned step; see ``TokenReplay``."""
        tokens, step, output_rows = len(batch.input_ids), batch.plan.address, batch.output_rows
        self._inputs.input_ids[:tokens].copy_(batch.input_ids)
        self._inputs.positions[:tokens].copy_(batch.positions)
        split = self._rowwise_actions
        if output_rows is None or len(output_rows) == tokens or split is None:
            self._run(self._actions, tokens, step)
            return self._result[:tokens]
        self._run(self._actions[:split], tokens, step)
        if output_rows:
            count, rows = len(output_rows), torch.tensor(output_rows)
            for part in self._rowwise_inputs:
                part[:count] = part[rows]
            self._run(self._actions[split:], count, step)
            self._result[rows] = self._result[:count].clone()
        return self._result[:tokens]

    def _run(self, actions: list[ReplayAction], tokens: int, step: int) -> None:
        for action in actions:
            if isinstance(action, TorchOperation):
                parts = (action.args, action.kwargs, action.outputs)
                args, kwargs, outputs = tree_map(lambda leaf: first_tokens(leaf, tokens), parts)
                TorchOperation(action.func, args, kwargs, outputs, action.fresh)()
            else:
                tape, calls = action
                self._library.replay_tokens(ctypes.addressof(calls), len(tape), tokens, step)


def rows_of(block: Tensor, buffer: Buffer) -> Tensor:
    """Return the bytes of a buffer in ``block``, ``[RECORDED_TOKENS, bytes]``."""
    return block[buffer.offset : buffer.offset + buffer.size].view(RECORDED_TOKENS, -1)


def first_tokens(leaf: Any, tokens: int) -> Any:
    """Return the rows of the first ``tokens`` tokens of a tensor that has a row for each."""
    if isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == RECORDED_TOKENS:
        return leaf[:tokens]
    return leaf


def assign_offsets(buffers: list[Buffer]) -> int:
    """Give each buffer an offset at which no other is in use at the same time; return the bytes of all.

    Each gets the first gap that is large enough, in the order of allocation.
    """
    assigned: list[Buffer] = []
    end = 0
    for buffer in sorted(buffers, key=lambda item: item.first):
        assigned = [other for other in assigned if other.last >= buffer.first]
        offset = 0
        for other in sorted(assigned, key=lambda item: item.offset):
            if other.offset - offset >= buffer.size:
                break
            offset = max(offset, -(-(other.offset + other.size) // LINE) * LINE)
        buffer.offset = offset
        assigned.append(buffer)
        end = max(end, offset + buffer.size)
    return -(-end // LINE) * LINE
