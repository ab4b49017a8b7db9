"""The process that compiles grammars: ``python -m sglang_plug.engine.grammar_worker``, started by ``grammar_process``.

It speaks msgpack, each message after its length, on its standard input and output. It may be killed at any time.
"""

from __future__ import annotations

import os
import resource
import signal
import struct
import sys
from pathlib import Path
from typing import BinaryIO

import msgspec

from sglang_plug.collecting import collecting_later
from sglang_plug.config import ConfigError, PluginOptions
from sglang_plug.grammar import Constraint, ConstraintError, GrammarBackend, Vocabulary
from sglang_plug.plugins import Plugins

from .grammar_backends import GrammarBackends, installed

LENGTH = struct.Struct("<Q")
GRACE = 5.0
"""Seconds after which a worker that should have been killed ends on its own."""


class Setup(msgspec.Struct, frozen=True):
    """The first message: which backends, for which vocabulary."""

    plugins: PluginOptions
    backends: tuple[str, ...]
    """Those that are tried in order for a constraint that names none; the first is built at once."""
    pieces: list[bytes]
    stop_ids: tuple[int, ...]
    special: dict[str, int]
    memory: int
    """Bytes that compiling may take."""
    timeout: float
    """Seconds that one constraint may take."""


class Started(msgspec.Struct, frozen=True):
    """The answer to ``Setup``; ``error`` says why the first backend cannot be used."""

    error: str | None = None


class Compiled(msgspec.Struct, frozen=True):
    """The answer to a ``Constraint``: what ``GrammarBackend.load`` takes, or why it was refused."""

    data: bytes = b""
    error: str | None = None


def main() -> int:
    """Compile one constraint after the other until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not be taken for an answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    message = read_message(sys.stdin.buffer)
    if message is None:
        return 0
    setup = msgspec.msgpack.decode(message, type=Setup)
    try:
        with collecting_later():
            backend = _backend(setup)
    except Exception as error:
        text = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        write_message(answers, msgspec.msgpack.encode(Started(text)))
        return 1
    _limit_memory(setup.memory)
    write_message(answers, msgspec.msgpack.encode(Started()))
    decoder = msgspec.msgpack.Decoder(Constraint)
    while (message := read_message(sys.stdin.buffer)) is not None:
        # The signal's default action needs no Python: it ends a compiler that nobody is left to kill.
        signal.setitimer(signal.ITIMER_REAL, setup.timeout + GRACE)
        answer = _compile(backend, decoder.decode(message))
        signal.setitimer(signal.ITIMER_REAL, 0)
        write_message(answers, msgspec.msgpack.encode(answer))
    return 0


def _backend(setup: Setup) -> GrammarBackend:
    vocabulary = Vocabulary(setup.pieces, setup.stop_ids, special=setup.special)
    plugins = Plugins.discover(setup.plugins)
    components = installed(plugins, plugins.get("grammar", setup.backends[0]))
    return GrammarBackends(components, setup.backends, vocabulary)


def _compile(backend: GrammarBackend, constraint: Constraint) -> Compiled:
    """Raises ``MemoryError``: after that the process is not to be relied on."""
    try:
        return Compiled(backend.compile(constraint))
    except ConstraintError as error:
        return Compiled(error=_sendable(str(error)))
    except (RecursionError, MemoryError):
        raise
    except Exception as error:
        return Compiled(error=_sendable(f"{type(error).__name__}: {error}"))


def _sendable(text: str) -> str:
    """``text``, which may repeat half a surrogate pair that a constraint spelled with an escape."""
    return text.encode(errors="backslashreplace").decode()


def _limit_memory(more: int) -> None:
    """Let the address space grow by ``more`` bytes from here."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + more
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def read_message(pipe: BinaryIO) -> bytes | None:
    """The next message; ``None`` if the other end is gone."""
    head = pipe.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    size: int = LENGTH.unpack(head)[0]
    body = pipe.read(size)
    return body if len(body) == size else None


def write_message(pipe: BinaryIO, message: bytes) -> None:
    """Send one message."""
    pipe.write(LENGTH.pack(len(message)) + message)
    pipe.flush()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # nobody is left to answer; leave without flushing into the same pipe again
        os._exit(0)
