"""The compiling process as the engine sees it: started, asked, killed when it takes too long."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from typing import BinaryIO, TypeVar, cast

import msgspec

from sglang_plug.config import ConfigError
from sglang_plug.grammar import Constraint, ConstraintError

from .grammar_worker import LENGTH, Compiled, Setup, Started, write_message

START_TIMEOUT = 300.0
"""Seconds the process may take to import its backend, on a machine that is busy loading weights."""
NICENESS = 5
"""Compiling gives way to serving."""

Answer = TypeVar("Answer", Started, Compiled)


class CompilerDied(Exception):
    """The process ended while it compiled."""


class GrammarProcess:
    """One compiling process at a time; a new one is started as soon as one is gone.

    Used by one thread, except ``interrupt``.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._encoded = msgspec.msgpack.encode(setup)
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._closed = False

    def start(self) -> None:
        """Begin to start a process, without waiting for it."""
        if self._closed:
            return
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sglang_plug.engine.grammar_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        try:
            os.setpriority(os.PRIO_PROCESS, self._process.pid, NICENESS)
        except OSError:
            pass
        self._send(self._encoded)

    def wait_ready(self) -> None:
        """Raises ``ConfigError`` if the backend cannot be used."""
        if self._ready:
            return
        try:
            started = self._receive(Started, START_TIMEOUT)
        except (CompilerDied, TimeoutError) as error:
            self._kill()
            raise ConfigError(f"the grammar compiler could not be started: {error or 'it takes too long'}") from None
        if started.error is not None:
            self._kill()
            raise ConfigError(started.error)
        self._ready = True

    def compile(self, constraint: Constraint, is_wanted: Callable[[], bool]) -> bytes:
        """The compiled constraint.

        Raises ``ConstraintError`` with a message for the caller, also when it takes too long, too much memory or
        the process with it. ``is_wanted`` is asked now and then; once it says no, compiling is given up.
        """
        if self._process is None:
            self.start()
        self.wait_ready()
        try:
            self._send(msgspec.msgpack.encode(constraint))
            answer = self._receive(Compiled, self._setup.timeout, is_wanted)
        except TimeoutError:
            self._replace()
            raise ConstraintError(
                f"compiling takes more than {self._setup.timeout:g} s (--grammar-timeout); simplify it",
                lasting=False,
            ) from None
        except CompilerDied:
            self._replace()
            raise ConstraintError(
                "compiling takes more memory or deeper recursion than there is; simplify it",
                lasting=False,
            ) from None
        if answer.error is not None:
            raise ConstraintError(answer.error)
        return answer.data

    def interrupt(self) -> None:
        """From any thread: end the process, and with it what waits for it; none is started again."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the process and free what it holds."""
        self._closed = True
        self._kill()

    def _replace(self) -> None:
        self._kill()
        self.start()

    def _kill(self) -> None:
        process, self._process = self._process, None
        self._ready = False
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:  # what was still to be written
                    pass

    def _send(self, message: bytes) -> None:
        process = self._process
        if process is None or process.stdin is None:
            raise CompilerDied
        try:
            write_message(cast(BinaryIO, process.stdin), message)
        except (BrokenPipeError, ValueError):
            pass  # the answer, or rather its absence, tells

    def _receive(self, kind: type[Answer], timeout: float, is_wanted: Callable[[], bool] = lambda: True) -> Answer:
        deadline = time.monotonic() + timeout
        head = self._read(LENGTH.size, deadline, is_wanted)
        return msgspec.msgpack.decode(self._read(LENGTH.unpack(head)[0], deadline, is_wanted), type=kind)

    def _read(self, size: int, deadline: float, is_wanted: Callable[[], bool]) -> bytes:
        process = self._process
        if process is None or process.stdout is None:
            raise CompilerDied
        found = bytearray()
        pipe = process.stdout.fileno()
        while len(found) < size:
            left = max(deadline - time.monotonic(), 0.0)
            if not select.select([pipe], [], [], min(left, 0.1))[0]:
                if not left or not is_wanted():
                    raise TimeoutError
                continue
            part = os.read(pipe, min(size - len(found), 1 << 20))
            if not part:
                raise CompilerDied
            found += part
        return bytes(found)
