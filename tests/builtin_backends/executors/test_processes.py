"""Ranks in processes, tested with a program that only communicates."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sglang_plug import LaunchSpec, RankGroup
from sglang_plug_backends.executors.processes import (
    ProcessExecutor,
    ProcessRankGroup,
    ProcessSettings,
    shared_buffers,
    threads_per_rank,
)
from sglang_plug_backends.executors.shared_memory import SharedCollectives, is_offered
from sglang_plug_backends.executors.torch_distributed import GroupCollectives

BOUND = 120.0
"""Timeout in seconds, only reached on failure."""
PROGRAM = """
import os, pathlib, sys, threading
import torch
from sglang_plug_backends.executors.processes import ProcessExecutor, ProcessSettings

rank, folder = sys.stdin.buffer.readline().decode().split()
pathlib.Path(sys.argv[0]).with_name(f"pid of rank {rank}").write_text(str(os.getpid()))
threading.Thread(target=lambda: (sys.stdin.buffer.raw.read(), os._exit(3)), daemon=True).start()
endpoint = ProcessExecutor(ProcessSettings()).join(int(rank), 3, torch.device("cpu"), folder)
while (message := endpoint.receive()) != b"end":
    if message == b"die":
        os._exit(7)
    x = torch.full((2, 3), 10.0 ** int(rank), dtype=getattr(torch, message.decode()))
    endpoint.collectives.all_reduce(x.clone())
    endpoint.collectives.all_gather(x)
    endpoint.collectives.broadcast(x)
    assert x[0, 0] == 1
    endpoint.collectives.all_reduce(torch.tensor([float(os.environ["OMP_NUM_THREADS"])]))
os._exit(0)
"""


def until(true: Callable[[], Any]) -> Any:
    end = time.monotonic() + BOUND
    while not (result := true()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return result


def pid_of(folder: Path, rank: int) -> int:
    """Return the process id that a worker rank has written into ``folder``."""
    path = folder / f"pid of rank {rank}"
    return int(until(lambda: path.exists() and path.read_text()))


def launch_spec(folder: Path, noted: list[str] | None = None) -> LaunchSpec:
    """Return the launch spec of two worker ranks that run the program and write their process ids into ``folder``.

    ``noted`` gets the rendezvous address that each is told.
    """
    program = folder / "worker.py"
    program.write_text(PROGRAM)

    def line(rank: int, rendezvous: str) -> bytes:
        if noted is not None:
            noted.append(rendezvous)
        return f"{rank} {rendezvous}\n".encode()

    return LaunchSpec(
        size=3,
        device=torch.device("cpu"),
        command=(sys.executable, str(program)),
        line=line,
        run_worker_rank=lambda rank, endpoint: None,
    )


@pytest.fixture(params=[True, False], ids=["shared memory", "sockets"])
def settings(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessSettings]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    yield ProcessSettings(threads=3, shared_memory=request.param)
    torch.set_num_threads(before)


@pytest.fixture
def rank_group(tmp_path: Path, settings: ProcessSettings) -> Iterator[RankGroup]:
    result = ProcessExecutor(settings).start(launch_spec(tmp_path))
    in_memory = settings.shared_memory and is_offered()
    assert isinstance(result.collectives, SharedCollectives if in_memory else GroupCollectives)
    yield result
    result.send(b"end")
    result.close()


def test_collectives_agree_on_all_ranks(rank_group: RankGroup) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        rank_group.send(str(dtype).removeprefix("torch.").encode())
        x = torch.ones(2, 3, dtype=dtype)
        assert torch.equal(rank_group.collectives.all_reduce(x.clone()), torch.full((2, 3), 111, dtype=dtype))
        assert rank_group.collectives.all_gather(x).tolist() == [[1] * 3 + [10] * 3 + [100] * 3] * 2
        rank_group.collectives.broadcast(x)
        assert rank_group.collectives.all_reduce(torch.tensor([0.0])).item() == 6.0, "threads of the two worker ranks"
    assert torch.get_num_threads() == 3
    assert rank_group.failure() is None


def test_one_that_ends_is_told(rank_group: RankGroup) -> None:
    rank_group.send(b"die")
    if isinstance(rank_group.collectives, SharedCollectives):
        with pytest.raises(ConnectionError, match=r"of the model ended \(exit code 7\)"):
            rank_group.collectives.all_reduce(torch.ones(3))
    assert "of the model ended (exit code 7)" in until(rank_group.failure)
    rank_group.close()
    assert rank_group.failure() is None


def test_without_memory_to_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str) -> int:
        raise PermissionError("not permitted here")

    spec = launch_spec(tmp_path)
    monkeypatch.setattr(os, "memfd_create", refused)
    assert shared_buffers(spec, ProcessSettings()) is None
    monkeypatch.undo()
    assert shared_buffers(replace(spec, device=torch.device("cuda", 0)), ProcessSettings()) is None


def test_one_that_does_not_heed_the_end_is_killed(tmp_path: Path, settings: ProcessSettings) -> None:
    addresses = list[str]()
    rank_group = ProcessRankGroup(launch_spec(tmp_path, addresses), settings, close_timeout=0.2)
    pids = [pid_of(tmp_path, rank) for rank in (1, 2)]
    folder = Path(addresses[0].partition(":")[2])
    assert folder.stat().st_mode & 0o077 == 0, "nobody else may connect"
    rank_group.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert not folder.exists()


def test_threads_are_shared_unless_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert threads_per_rank(ProcessSettings(), 4, cores=12) == 3
    assert threads_per_rank(ProcessSettings(), 32, cores=12) == 1
    assert threads_per_rank(ProcessSettings(threads=5), 4, cores=12) == 5
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert threads_per_rank(ProcessSettings(), 4, cores=12) is None
    assert threads_per_rank(ProcessSettings(threads=5), 4, cores=12) == 5
