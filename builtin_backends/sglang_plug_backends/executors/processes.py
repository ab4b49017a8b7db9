"""Ranks as processes of this machine.

Messages go over ZeroMQ on unix sockets, tensors through memory that CPUs share, or through torch.distributed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import zmq

from sglang_plug import Collectives, Executor, Order, Seat, Team
from sglang_plug.private_folder import private_folder

from .group import GroupCollectives
from .shared import SharedCollectives, is_offered, memory_file

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT = 10.0
"""Seconds a follower has to end before it is killed."""
THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """How processes share the machine."""

    threads: int | None = None
    """Threads that each rank computes with on a CPU; ``None``: the cores that this process may use, shared equally,
    unless ``OMP_NUM_THREADS`` says."""
    timeout: float = 1800.0
    """Seconds a rank waits for the others to join in what all do together."""
    shared_memory: bool = True
    """Let ranks on CPUs exchange tensors in memory that they share, where it can be had (Linux on x86-64), rather than
    through sockets (gloo)."""


class ProcessTeam(Team):
    """Followers in processes."""

    def __init__(self, order: Order, settings: ProcessSettings) -> None:
        self._folder = private_folder("sglang-plug-ranks-")  # nobody else may connect
        self._context = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._closing = False
        memory = _memory(order, settings)
        ticket = _Ticket(str(self._folder), memory)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        if order.device.type == "cpu" and (threads := _threads(settings, order.size)) is not None:
            torch.set_num_threads(threads)
            environment[THREADS] = str(threads)
        for rank in range(1, order.size):
            self._spawn(order, rank, ticket, environment)
        self.collectives = _collectives(0, order.size, order.device, ticket, settings, self.failure)

    def _spawn(self, order: Order, rank: int, ticket: _Ticket, environment: dict[str, str]) -> None:
        socket = self._context.socket(zmq.PUSH)
        socket.set_hwm(0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(_address(self._folder, rank))  # whoever binds has no queue for a follower that is not there
        self._sockets.append(socket)
        files = () if ticket.memory is None else (ticket.memory,)
        process = subprocess.Popen(order.command, stdin=subprocess.PIPE, env=environment, pass_fds=files)
        self._processes.append(process)
        assert process.stdin is not None
        process.stdin.write(order.line(rank, ticket.text()))  # kept open: its end tells the follower to end
        process.stdin.flush()

    def send(self, message: bytes) -> None:
        """Queued for every follower, be it there yet, or no more; the queues have no limit."""
        for socket in () if self._closing else self._sockets:
            socket.send(message)

    def failure(self) -> str | None:
        """Which follower has ended, and how."""
        for rank, process in enumerate(self._processes, 1):
            code = process.poll()
            if code is not None and not self._closing:
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                return f"rank {rank} of the model ended ({how}); its own lines in the log may tell why"
        return None

    def close(self) -> None:
        """Wait for the followers, then kill."""
        self._closing = True
        if isinstance(self.collectives, SharedCollectives):
            self.collectives.close()  # whoever still waits for a rank that is gone
        for process in self._processes:
            self._end(process)
        self.collectives.close()
        self._context.destroy(linger=0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(CLOSE_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()


class ProcessExecutor(Executor):
    """Followers in processes of this machine."""

    settings: ProcessSettings

    def start(self, order: Order) -> Team:
        """Comes back at once: the followers load their parts while rank 0 does."""
        return ProcessTeam(order, self.settings)

    def join(self, rank: int, size: int, device: torch.device, ticket: str) -> Seat:
        """Be a follower of the team that made the ticket."""
        place = _Ticket.read(ticket)
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PULL)
        socket.set_hwm(0)
        socket.bind(_address(Path(place.folder), rank))
        return Seat(_collectives(rank, size, device, place, self.settings), socket.recv)


@dataclass(frozen=True, slots=True)
class _Ticket:
    """Where the ranks find each other."""

    folder: str
    """Of sockets."""
    memory: int | None
    """File descriptor of what they share, which processes inherit."""

    def text(self) -> str:
        return f"{'' if self.memory is None else self.memory}:{self.folder}"

    @classmethod
    def read(cls, text: str) -> _Ticket:
        memory, _, folder = text.partition(":")
        return cls(folder, int(memory) if memory else None)


def _memory(order: Order, settings: ProcessSettings) -> int | None:
    """A descriptor of memory to share; ``None``: tensors go through torch.distributed."""
    if order.device.type != "cpu" or not settings.shared_memory or not is_offered():
        return None
    try:
        return memory_file(order.size)
    except OSError as error:
        logger.info("Ranks exchange tensors through sockets: no memory can be shared (%s)", error)
        return None


def _collectives(
    rank: int,
    size: int,
    device: torch.device,
    ticket: _Ticket,
    settings: ProcessSettings,
    lost: Callable[[], str | None] = lambda: None,
) -> Collectives:
    if ticket.memory is not None:
        return SharedCollectives(rank, size, ticket.memory, settings.timeout, lost)
    return GroupCollectives(rank, size, device, f"{ticket.folder}/meeting", settings.timeout)


def _address(folder: Path, rank: int) -> str:
    return f"ipc://{folder}/{rank}"


def _threads(settings: ProcessSettings, size: int) -> int | None:
    """Of each rank; ``None``: as the environment says."""
    if settings.threads is not None:
        return settings.threads
    return None if THREADS in os.environ else max(1, len(os.sched_getaffinity(0)) // size)
