"""Ranks as processes of this machine.

Messages use ZeroMQ on unix sockets; tensors use shared memory between CPUs, or torch.distributed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import zmq

from sglang_plug import Collectives, Executor, LaunchSpec, RankEndpoint, RankGroup, child_environment, start_child
from sglang_plug.system.private_folder import private_folder

from .shared_memory import SharedCollectives, is_offered, memory_file
from .torch_distributed import GroupCollectives

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT = 10.0
THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """Settings of the process executor."""

    threads: int | None = None
    """Threads per rank for computing on a CPU.

    ``None``: the cores available to this process, divided equally, unless ``OMP_NUM_THREADS`` is set.
    """
    timeout: float = 1800.0
    """Seconds that a rank waits for the others in a collective operation."""
    shared_memory: bool = True
    """Let ranks on CPUs exchange tensors in shared memory if available (Linux on x86-64) instead of sockets (gloo)."""


class ProcessRankGroup(RankGroup):
    """A rank group whose worker ranks are processes.

    Args:
        spec: what to start.
        settings: threads, timeout and kind of the collectives.
        close_timeout: seconds that a worker rank has to exit before it is killed.
    """

    def __init__(self, spec: LaunchSpec, settings: ProcessSettings, *, close_timeout: float = CLOSE_TIMEOUT) -> None:
        self._temporary = private_folder("sglang-plug-ranks-")  # only this user may connect
        self._folder = self._temporary.path
        self._context = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._closing, self._close_timeout = False, close_timeout
        memory = shared_buffers(spec, settings)
        rendezvous = _Rendezvous(str(self._folder), memory)
        environment = child_environment()
        threads = threads_per_rank(settings, spec.size, len(os.sched_getaffinity(0)))
        if spec.device.type == "cpu" and threads is not None:
            torch.set_num_threads(threads)
            environment[THREADS] = str(threads)
        for rank in range(1, spec.size):
            self._spawn(spec, rank, rendezvous, environment)
        self.collectives = _collectives(0, spec.size, spec.device, rendezvous, settings, self.failure)

    def _spawn(self, spec: LaunchSpec, rank: int, rendezvous: _Rendezvous, environment: dict[str, str]) -> None:
        socket = self._context.socket(zmq.PUSH)
        socket.set_hwm(0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(
            _address(self._folder, rank)
        )  # a bound socket has no queue for a worker rank that has not connected
        self._sockets.append(socket)
        files = () if rendezvous.memory is None else (rendezvous.memory,)
        process = start_child(spec.command, environment=environment, pass_fds=files)
        self._processes.append(process)
        assert process.stdin is not None
        process.stdin.write(spec.line(rank, rendezvous.text()))  # kept open: end of file tells the worker rank to exit
        process.stdin.flush()

    def send(self, message: bytes) -> None:
        """Queue a message for every worker rank, whether or not it is connected; the queues are unbounded."""
        for socket in () if self._closing else self._sockets:
            socket.send(message)

    def failure(self) -> str | None:
        """Return the worker rank that has exited and its exit status, or ``None``."""
        for rank, process in enumerate(self._processes, 1):
            code = process.poll()
            if code is not None and not self._closing:
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                return f"rank {rank} of the model ended ({how}); its own lines in the log may show why"
        return None

    def close(self) -> None:
        """Wait for the worker ranks to exit, then kill the remaining ones."""
        self._closing = True
        if isinstance(self.collectives, SharedCollectives):
            self.collectives.close()  # a worker rank that still waits for a lost rank
        for process in self._processes:
            self._end(process)
        self.collectives.close()
        self._context.destroy(linger=0)
        self._temporary.close()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(self._close_timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()


class ProcessExecutor(Executor):
    """Executor that runs worker ranks as processes of this machine."""

    settings: ProcessSettings

    def start(self, spec: LaunchSpec) -> RankGroup:
        """Start the worker ranks and return at once: they load their parts while rank 0 does."""
        return ProcessRankGroup(spec, self.settings)

    def join(self, rank: int, size: int, device: torch.device, rendezvous: str) -> RankEndpoint:
        """Run as a worker rank of the group that created the rendezvous address."""
        address = _Rendezvous.read(rendezvous)
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PULL)
        socket.set_hwm(0)
        socket.bind(_address(Path(address.folder), rank))
        return RankEndpoint(_collectives(rank, size, device, address, self.settings), socket.recv)


@dataclass(frozen=True, slots=True)
class _Rendezvous:
    """Rendezvous address of the ranks."""

    folder: str
    """Folder of the sockets."""
    memory: int | None
    """File descriptor of the shared memory, which the processes inherit."""

    def text(self) -> str:
        return f"{'' if self.memory is None else self.memory}:{self.folder}"

    @classmethod
    def read(cls, text: str) -> _Rendezvous:
        memory, _, folder = text.partition(":")
        return cls(folder, int(memory) if memory else None)


def shared_buffers(spec: LaunchSpec, settings: ProcessSettings) -> int | None:
    """Return a descriptor of memory for the ranks to share; ``None`` if tensors use torch.distributed."""
    if spec.device.type != "cpu" or not settings.shared_memory or not is_offered():
        return None
    try:
        return memory_file(spec.size)
    except OSError as error:
        logger.info("Ranks exchange tensors through sockets: no memory can be shared (%s)", error)
        return None


def _collectives(
    rank: int,
    size: int,
    device: torch.device,
    rendezvous: _Rendezvous,
    settings: ProcessSettings,
    lost: Callable[[], str | None] = lambda: None,
) -> Collectives:
    if rendezvous.memory is not None:
        return SharedCollectives(rank, size, rendezvous.memory, settings.timeout, lost)
    return GroupCollectives(rank, size, device, f"{rendezvous.folder}/rendezvous", settings.timeout)


def _address(folder: Path, rank: int) -> str:
    return f"ipc://{folder}/{rank}"


def threads_per_rank(settings: ProcessSettings, size: int, cores: int) -> int | None:
    """Return the threads of each of ``size`` ranks that share ``cores``; ``None`` if the environment decides."""
    if settings.threads is not None:
        return settings.threads
    return None if THREADS in os.environ else max(1, cores // size)
