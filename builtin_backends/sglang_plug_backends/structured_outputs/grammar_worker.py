"""The process that compiles grammars.

``grammar_process`` starts it as ``python -m sglang_plug_backends.structured_outputs.grammar_worker``. It exchanges
msgpack messages on its standard input and output, see ``pipe_messages``. It may be killed at any time.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
from pathlib import Path

import msgspec

from sglang_plug import (
    ConfigError,
    Constraint,
    ConstraintError,
    GrammarBackend,
    PluginOptions,
    Plugins,
    Vocabulary,
    leave_signals_to_parent,
)
from sglang_plug_backends.pipe_messages import read_message, write_message

from .grammar_backends import GrammarBackends, installed

STALLED = 5.0
"""Multiple of the limit, by the clock, at which compiling ends, however little of it was computing."""
GRACE = 5.0
"""Seconds after which a worker that should have been killed ends on its own."""
STACK = 8 << 20
"""Bytes of the worker's stack: less than that of the engine's threads that load the compiled grammars."""


class Setup(msgspec.Struct, frozen=True):
    """The first message: the backends and the vocabulary."""

    plugins: PluginOptions
    backends: tuple[str, ...]
    """Names of the backends to try in order for a constraint that names none; the first is built at once."""
    pieces: list[bytes]
    stop_ids: tuple[int, ...]
    special: dict[str, int]
    memory: int
    """Bytes that compiling may take."""
    timeout: float
    """Seconds of computing that one constraint may take."""


class Started(msgspec.Struct, frozen=True):
    """The answer to ``Setup``; ``error`` says why the first backend cannot be used."""

    error: str | None = None


class Compiled(msgspec.Struct, frozen=True):
    """The answer to a ``Constraint``: the compiled data for ``GrammarBackend.load``, or the reason of the refusal."""

    data: bytes = b""
    error: str | None = None
    exhausted: bool = False
    """True if memory or stack did not suffice: the process ends after this answer."""


EXHAUSTED = msgspec.msgpack.encode(
    Compiled(error="compiling takes more memory or deeper recursion than there is; simplify it", exhausted=True)
)
"""The answer for lack of memory, encoded in advance because there is no memory left when it is needed."""


def main() -> int:
    """Compile one constraint after the other until the input ends."""
    leave_signals_to_parent()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not be taken for an answer
    message = read_message(sys.stdin.buffer)
    if message is None:
        return 0
    setup = msgspec.msgpack.decode(message, type=Setup)
    try:
        gc.disable()  # imports make many objects that last, which collecting would traverse again and again
        backend = _backend(setup)
        gc.enable()
    except Exception as error:
        if isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError):
            raise  # another attempt may find more memory
        text = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        write_message(answers, msgspec.msgpack.encode(Started(text)))
        return 1
    _limit_stack()
    _limit_memory(setup.memory)
    write_message(answers, msgspec.msgpack.encode(Started()))
    decoder = msgspec.msgpack.Decoder(Constraint)
    while (message := read_message(sys.stdin.buffer)) is not None:
        # The signal's default action needs no Python: it ends a compiler whose engine is gone and cannot kill it.
        signal.setitimer(signal.ITIMER_REAL, setup.timeout * STALLED + GRACE)
        try:
            answer = _compile(backend, decoder.decode(message))
        except (RecursionError, MemoryError):
            write_message(answers, EXHAUSTED)
            return 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        write_message(answers, msgspec.msgpack.encode(answer))
    return 0


def _backend(setup: Setup) -> GrammarBackend:
    vocabulary = Vocabulary(setup.pieces, setup.stop_ids, special=setup.special)
    plugins = Plugins.discover(setup.plugins)
    components = installed(plugins, plugins.get("grammar", setup.backends[0]))
    return GrammarBackends(components, setup.backends, vocabulary)


def _compile(backend: GrammarBackend, constraint: Constraint) -> Compiled:
    """Compile a constraint. Raises ``MemoryError`` and ``RecursionError``, after which the process is unreliable."""
    try:
        return Compiled(backend.compile(constraint))
    except ConstraintError as error:
        return Compiled(error=_sendable(str(error)))
    except (RecursionError, MemoryError):
        raise
    except Exception as error:
        return Compiled(error=_sendable(f"{type(error).__name__}: {error}"))


def _sendable(text: str) -> str:
    """Escape half surrogate pairs in ``text``, which a constraint may contain as escapes."""
    return text.encode(errors="backslashreplace").decode()


def _limit_stack() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if soft == resource.RLIM_INFINITY or soft > STACK:
        resource.setrlimit(resource.RLIMIT_STACK, (STACK, hard))


def _limit_memory(more: int) -> None:
    """Limit the growth of the address space to ``more`` bytes from now on."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # the engine is gone; exit without flushing into the same pipe again
        os._exit(0)
