"""Commands of rank 0 to the decode graphs of the worker ranks."""

from __future__ import annotations

import msgspec


class CaptureSizes(msgspec.Struct, tag="capture", frozen=True):
    """Capture decode steps of some batch sizes as graphs, in this order; a vote follows."""

    sizes: list[int]


class ReplayStep(msgspec.Struct, tag="replay", frozen=True):
    """Replay the decode step of a batch size."""

    size: int
    inputs: bytes
    """``[4, size]`` int64 in bytes; see ``graph_inputs``."""
    tables: list[tuple[int, bytes]]
    """Rows whose slot tables begin differently than before, and these tables."""
    known: bool
    """True if the tokens are among the inputs; otherwise they follow from the device."""


Command = CaptureSizes | ReplayStep


def encode_command(command: Command) -> bytes:
    """Return ``command`` as a message."""
    return msgspec.msgpack.encode(command)


def decode_command(message: bytes) -> Command:
    """Return the command that ``message`` contains."""
    command: Command = msgspec.msgpack.decode(message, type=Command)
    return command
