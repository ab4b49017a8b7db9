"""Rendering of chat templates in separate processes, which can be killed.

A template comes from the checkpoint, which is only half trusted, and may compute whatever it likes from a caller's
messages. Jinja's sandbox keeps it from the server's objects, but bounds neither its time nor its memory; only a process
can be bounded in both.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO, cast

from sglang_plug import TemplateError, end_child, python_command, start_child
from sglang_plug_backends.pipe_messages import LENGTH, write_message

from .template_worker import ABOUT_VARIABLES, ENCODING, TEXT

MODULE = "sglang_plug_backends.huggingface.template_worker"
MAX_PROCESSES = 4
"""Maximum concurrent renderings; one process is started at once, the others on demand."""
PIPE_BYTES = 1 << 20
"""Size of the pipes, so that most conversations fit without either side waiting for the other."""
WALL_SECONDS = 60.0
"""Maximum wall time of an answer in seconds, for machines that leave the process no CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSetup:
    """The templates of one checkpoint, and the limits of each rendering."""

    templates: Mapping[str, str]
    """Template texts by name."""
    constants: Mapping[str, str] = field(default_factory=dict)
    cpu_seconds: float = 5.0
    memory: int = 1 << 30
    """Address space limit of a process in bytes."""
    characters: int = 1 << 26
    """Maximum characters of a prompt."""


class TemplateProcesses:
    """Renders chat templates in a few processes. Its methods are thread-safe.

    A process that exceeds a limit is killed, and the next request starts another one. All end with this object, or when
    their standard input closes because this process is gone.
    """

    def __init__(self) -> None:
        self._setup = TemplateSetup(templates={})
        self._idle = deque[_Process]()
        self._turn = threading.BoundedSemaphore(MAX_PROCESSES)

    def start(self) -> None:
        """Start a process without waiting for it."""
        self._idle.append(_Process())

    def configure(self, setup: TemplateSetup) -> None:
        """Set the templates; called once, before the first request."""
        self._setup = setup

    def check(self, template: str) -> None:
        """Raise ``TemplateError`` if the template of this name cannot be compiled."""
        self._send_request({"template": template, "options": None})

    def render(self, template: str, options: Mapping[str, Any]) -> str:
        """Return the prompt of ``ChatTemplate.render(**options)``. Raises ``TemplateError``."""
        return self._send_request({"template": template, "options": options})

    def _send_request(self, request: Mapping[str, Any]) -> str:
        try:
            message = json.dumps(request, default=_plain).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise TemplateError(f"the messages cannot be passed to the chat template: {error}") from error
        with self._turn:
            idle = self._idle_process()
            process = _Process() if idle is None else idle
            try:
                answer = process.ask(self._setup, message)  # if this raises, the process is dropped and exits
            except _EndedError:
                if idle is None:
                    raise
                process = _Process()  # the idle one may have been killed from outside
                answer = process.ask(self._setup, message)
            self._idle.append(process)
        kind, text = answer[:1], answer[1:].decode(*ENCODING)
        if kind == TEXT:
            return text
        raise TemplateError(text, "variables" if kind == ABOUT_VARIABLES else "messages")

    def _idle_process(self) -> _Process | None:
        """Return an idle process, and drop those that have ended meanwhile."""
        while True:
            try:
                process = self._idle.pop()
            except IndexError:
                return None
            if process.is_alive:
                return process


class _EndedError(TemplateError):
    """A process ended before it had answered."""


class _Process:
    """One process, used by one thread at a time."""

    def __init__(self) -> None:
        self._process = start_child(python_command(MODULE), stdout=subprocess.PIPE, pipe_bytes=PIPE_BYTES)
        self._input, self._output = cast(BinaryIO, self._process.stdin), cast(BinaryIO, self._process.stdout)
        self._end = weakref.finalize(self, end_child, self._process)
        self._is_set_up = False

    @property
    def is_alive(self) -> bool:
        """True if the process has not ended."""
        return self._process.poll() is None

    def ask(self, setup: TemplateSetup, message: bytes) -> bytes:
        """Return the answer to a request. Kills the process and raises ``TemplateError`` if it exceeds the limits.

        Raises ``_EndedError`` if the process ends for another reason than its time.
        """
        try:
            if not self._is_set_up:
                write_message(self._input, json.dumps(asdict(setup)).encode())
                self._is_set_up = True
            write_message(self._input, message)
            deadline = time.monotonic() + WALL_SECONDS
            size = LENGTH.unpack(self._read(LENGTH.size, deadline))[0]
            return self._read(size, deadline)
        except (OSError, TimeoutError) as error:
            self._end()
            if isinstance(error, TimeoutError) or self._process.returncode == -signal.SIGPROF:
                raise TemplateError(
                    f"the chat template takes more than {setup.cpu_seconds:g} seconds for these messages"
                ) from None
            raise _EndedError(
                "the process that renders the chat template ended at these messages; it may use "
                f"{setup.memory >> 20} MiB of memory"
            ) from None

    def _read(self, size: int, deadline: float) -> bytes:
        pipe = self._output.fileno()
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        content = bytearray()
        while len(content) < size:
            if not poll.poll(max(0.0, 1000 * (deadline - time.monotonic()))):
                raise TimeoutError
            part = os.read(pipe, min(size - len(content), 1 << 20))
            if not part:
                self._process.wait()
                raise BrokenPipeError
            content += part
        return bytes(content)


def _plain(value: object) -> Any:
    """Convert mappings and sequences to the types that JSON can represent."""
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "__iter__"):
        return list(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
