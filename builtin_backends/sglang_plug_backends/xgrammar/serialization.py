"""Serialisation of compiled grammars between the compiling process and the engine.

xgrammar writes a compiled grammar as JSON which repeats the automaton of the whole grammar for each rule: megabytes
that take up to a hundred times as long to write and to read as compiling takes. A grammar that compiled quickly is
therefore sent as its source, which the engine compiles again; only what took long is sent as JSON.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal

QUICK = 0.3
"""Maximum seconds of compiling for which the engine may compile a grammar again."""
HEAD = struct.Struct("<??Q")

Form = Literal["source", "json"]


@dataclass(frozen=True, slots=True)
class Portable:
    """A compiled grammar that is passed between two processes."""

    form: Form
    text: str
    """EBNF or a structural tag that compiles quickly, or the compiled grammar as JSON."""
    forces: bool
    """True if the grammar can be asked for forced text."""
    memory: int
    """Bytes that the compiled grammar takes."""

    def encode(self) -> bytes:
        """Serialise to bytes."""
        return HEAD.pack(self.form == "source", self.forces, self.memory) + self.text.encode()

    @classmethod
    def decode(cls, data: bytes) -> Portable:
        """Read the bytes that ``encode`` wrote."""
        is_source, forces, memory = HEAD.unpack_from(data)
        return cls("source" if is_source else "json", data[HEAD.size :].decode(), forces, memory)


def memory_of(data: bytes) -> int:
    """Return the size in bytes of the compiled grammar in ``data``, and its source."""
    memory: int = HEAD.unpack_from(data)[2]
    return memory + (len(data) if data[0] else 0)
