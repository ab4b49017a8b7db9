"""The engine's side of the compiling process: it is started, called, and replaced when it ends or takes too long."""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

import msgspec

from sglang_plug import ConfigError, Constraint, ConstraintError, end_child, python_command, start_child
from sglang_plug_backends.pipe_messages import LENGTH, write_message

from .grammar_worker import STALLED, Compiled, Setup, Started

logger = logging.getLogger(__name__)

START_TIMEOUT = 300.0
"""Seconds that the process may take to import its backend, on a machine that is busy loading weights."""
START_PAUSES = (0.0, 0.2, 1.0)
"""Seconds before each attempt to start a process."""
KILLED_TIMEOUT = 60.0
"""Seconds for which starting is repeated while the started processes are killed."""
COOL_DOWN = 2.0
"""Seconds after a failed start in which no other start is attempted."""
ATTEMPTS = 2
"""Number of processes that may end while they compile one constraint before the constraint is refused."""
REPLACING = 2.0
"""Minimum seconds of compiling before it is given up because no request waits: restarting takes as long."""
END_TIMEOUT = 5.0
"""Seconds that a process may take to end once it has closed its output."""
NICENESS = 5
"""Niceness of the process, so that compiling has a lower priority than serving."""
POLL = 0.1
"""Seconds between two checks whether to continue waiting."""

Answer = TypeVar("Answer", Started, Compiled)
GoOn = Callable[[], None]
"""Called at intervals while waiting for an answer; raises an error to end the wait."""


class CompilerUnavailable(Exception):
    """Raised if no compiling process can be started at the moment; the message says why."""


class CompilerDied(Exception):
    """Raised if the process ended before it answered; the message says how."""


class NotWanted(Exception):
    """Raised if no request waits for the answer any more."""


def spawn_worker() -> subprocess.Popen[bytes]:
    """Start the program of a compiling process, with a pipe to it and one from it. Raises ``OSError``."""
    command = python_command("sglang_plug_backends.structured_outputs.grammar_worker")
    return start_child(command, stdout=subprocess.PIPE)


class GrammarProcess:
    """Runs one compiling process at a time; a new one is started as soon as one is gone.

    Used by one thread, except ``interrupt``.

    Args:
        setup: returns the first message to the process; called in the thread that uses this.
        starting: held while a process starts, because several at once would all take longer.
        spawn: starts a process, with pipes as its standard input and output. Raises ``OSError``.
    """

    def __init__(
        self,
        setup: Callable[[], Setup],
        starting: threading.Lock,
        *,
        spawn: Callable[[], subprocess.Popen[bytes]] = spawn_worker,
    ) -> None:
        self._setup, self._starting, self._spawn_process = setup, starting, spawn
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = self._was_ready = False
        self.closed = False
        """True once no process is started any more."""
        self._next_start = 0.0

    def start(self) -> None:
        """Begin to start a process, without waiting for it; ``wait_ready`` repeats a failed start."""
        if self._starting.locked():
            return
        try:
            self._spawn()
        except OSError as error:
            logger.warning("a process to compile grammars could not be started: %s", error)

    def wait_ready(self, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Wait until a process has built its backend, and start another one if it ends before.

        Raises ``ConfigError`` if the backend cannot be used, ``CompilerUnavailable`` if no process gets ready, and
        ``NotWanted``.
        """
        if self._ready and not self._has_ended():
            return
        if time.monotonic() < self._next_start:
            raise CompilerUnavailable("the grammar compiler could not be started a moment ago")
        killed_until = time.monotonic() + KILLED_TIMEOUT
        pauses = list(START_PAUSES)
        while pauses:
            self._pause(pauses.pop(0), is_wanted)
            try:
                self._begin(is_wanted)
                return
            except (CompilerDied, OSError, TimeoutError) as error:
                reason = str(error) or "it takes too long"
                if not self.closed:  # not if the engine ended it while closing
                    logger.warning("a process to compile grammars did not get ready: %s", reason)
                if self._was_killed() and time.monotonic() < killed_until:
                    pauses = pauses or [START_PAUSES[1]]
                self._kill()
        self._next_start = time.monotonic() + COOL_DOWN
        raise CompilerUnavailable(f"the grammar compiler could not be started: {reason}")

    def compile(self, constraint: Constraint, is_wanted: Callable[[], bool]) -> bytes:
        """Compile a constraint.

        If the process ends meanwhile, a new one tries once more. Raises ``ConstraintError`` with a message for the
        caller, also if compiling takes too long or too much memory or ends both processes, and ``CompilerUnavailable``.
        ``is_wanted`` is called at intervals; once it returns False, compiling is given up.
        """
        message = msgspec.msgpack.encode(constraint)
        for _ in range(ATTEMPTS):
            try:
                self.wait_ready(is_wanted)
                answer = self._ask(message, is_wanted)
            except NotWanted:
                if self._ready:
                    self._replace()
                raise ConstraintError("no request waits for it any longer", lasting=False) from None
            except TimeoutError:
                self._replace()
                raise ConstraintError(
                    f"compiling takes more than {self._setup().timeout:g} s (--grammar-timeout); simplify it",
                    lasting=False,
                ) from None
            except CompilerDied as death:
                how = str(death)
                logger.warning("a process ended while it compiled a grammar (%s)", how)
                self._replace()
                continue
            if answer.exhausted:
                self._replace()
            if answer.error is not None:
                raise ConstraintError(answer.error, lasting=not answer.exhausted)
            return answer.data
        raise ConstraintError(
            f"compiling it ended {ATTEMPTS} compiling processes in a row ({how}): it may need more memory or deeper "
            "recursion than there is; simplify it",
            lasting=False,
        )

    def interrupt(self) -> None:
        """End the process, and with it calls that wait for it; none is started again. May be called by any thread."""
        self.closed = True
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the process and free its resources."""
        self.closed = True
        self._kill()

    @cached_property
    def _encoded(self) -> bytes:
        return msgspec.msgpack.encode(self._setup())

    # -- starting and ending --------------------------------------------------------------------------------------

    def _spawn(self) -> None:
        """Start a process and send it the setup. Raises ``OSError``."""
        if self.closed:
            return
        self._process = self._spawn_process()
        try:
            os.setpriority(os.PRIO_PROCESS, self._process.pid, NICENESS)
        except OSError:
            pass
        self._send(self._encoded)

    def _begin(self, is_wanted: Callable[[], bool]) -> None:
        """Wait for the starting process, or for a new one. Raises ``OSError`` and the errors of ``_receive``."""
        while not self._starting.acquire(timeout=POLL):
            self._look(is_wanted)
        try:
            started = self._started(is_wanted)
        finally:
            self._starting.release()
        if started.error is None:
            self._ready = self._was_ready = True
        elif self._was_ready:
            raise CompilerDied(started.error)
        else:
            self._kill()
            raise ConfigError(started.error)

    def _started(self, is_wanted: Callable[[], bool]) -> Started:
        if self._ready:  # it was ready, and has ended since
            self._kill()
        if self._process is None:
            self._spawn()
        deadline = time.monotonic() + START_TIMEOUT

        def go_on() -> None:
            self._look(is_wanted)
            if time.monotonic() > deadline:
                raise TimeoutError

        return self._receive(Started, go_on)

    def _has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def _was_killed(self) -> bool:
        """Report whether a signal has ended the process."""
        return not self.closed and self._process is not None and (self._process.poll() or 0) < 0

    def _pause(self, seconds: float, is_wanted: Callable[[], bool]) -> None:
        until = time.monotonic() + seconds
        while (seconds_left := until - time.monotonic()) > 0:
            self._look(is_wanted)
            time.sleep(min(seconds_left, POLL))

    def _look(self, is_wanted: Callable[[], bool]) -> None:
        """Raise ``CompilerUnavailable`` once the engine closes, ``NotWanted`` once no request waits any more."""
        if self.closed:
            raise CompilerUnavailable("the grammar compiler could not be started: the engine is closing")
        if not is_wanted():
            raise NotWanted

    def _replace(self) -> None:
        self._kill()
        self.start()

    def _kill(self) -> None:
        process, self._process = self._process, None
        self._ready = False
        if process is not None:
            end_child(process)

    # -- messages -------------------------------------------------------------------------------------------------

    def _ask(self, message: bytes, is_wanted: Callable[[], bool]) -> Compiled:
        """Let the process compile. Raises ``TimeoutError``, ``NotWanted`` and ``CompilerDied``."""
        assert self._process is not None
        computing = ComputingTime(self._process.pid, self._setup().timeout)

        def go_on() -> None:
            if computing.is_over():
                raise TimeoutError
            if computing.elapsed() > REPLACING and not is_wanted():
                raise NotWanted

        self._send(message)
        return self._receive(Compiled, go_on)

    def _send(self, message: bytes) -> None:
        process = self._process
        if process is None or process.stdin is None:
            raise CompilerDied("it is closed")
        try:
            write_message(cast(BinaryIO, process.stdin), message)
        except (BrokenPipeError, ValueError):
            pass  # reading the answer will fail

    def _receive(self, kind: type[Answer], go_on: GoOn) -> Answer:
        head = self._read(LENGTH.size, go_on)
        return msgspec.msgpack.decode(self._read(LENGTH.unpack(head)[0], go_on), type=kind)

    def _read(self, size: int, go_on: GoOn) -> bytes:
        process = self._process
        if process is None or process.stdout is None:
            raise CompilerDied("it is closed")
        data = bytearray()
        pipe = process.stdout.fileno()
        while len(data) < size:
            if not select.select([pipe], [], [], POLL)[0]:
                go_on()
                continue
            part = os.read(pipe, min(size - len(data), 1 << 20))
            if not part:
                raise CompilerDied(_ending(process))
            data += part
        return bytes(data)


class ComputingTime:
    """The time that a process spends on one task, without the time in which it waits for a processor.

    A machine may be busy with other things, so the limit is reached when both the clock and the processors' time of
    the process have passed it, or when the clock has passed it ``STALLED`` times over.

    Args:
        pid: the process.
        limit: seconds.
    """

    def __init__(self, pid: int, limit: float) -> None:
        self._pid, self._limit = pid, limit
        self._begun, self._computed = time.monotonic(), _processor_seconds(pid)

    def elapsed(self) -> float:
        """Return the elapsed seconds by the clock."""
        return time.monotonic() - self._begun

    def is_over(self) -> bool:
        """Report whether the limit is reached."""
        elapsed = self.elapsed()
        if elapsed < self._limit:
            return False
        return elapsed > self._limit * STALLED or _processor_seconds(self._pid) - self._computed >= self._limit


def _processor_seconds(pid: int) -> float:
    """Return the seconds that the threads of a process have computed; see proc_pid_stat(5)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:  # it is gone
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _ending(process: subprocess.Popen[bytes]) -> str:
    """Describe how a process ended that has closed its output."""
    try:
        status = process.wait(END_TIMEOUT)
    except subprocess.TimeoutExpired:
        return "it has closed its output"
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
