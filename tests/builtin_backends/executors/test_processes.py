"""Ranks in processes, tested with a program that only communicates."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sglang_plug import LaunchSpec, RankGroup
from sglang_plug_backends.executors import processes
from sglang_plug_backends.executors.processes import ProcessExecutor, ProcessSettings
from sglang_plug_backends.executors.shared_memory import SharedCollectives, is_offered
from sglang_plug_backends.executors.torch_distributed import GroupCollectives

BOUND = 120.0
"""Timeout in seconds, only reached on failure."""
PROGRAM = """
import os, sys, threading
import torch
from sglang_plug_backends.executors.processes import ProcessExecutor, ProcessSettings

rank, folder = sys.stdin.buffer.readline().decode().split()
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


@pytest.fixture(params=[True, False], ids=["shared memory", "sockets"])
def rank_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[RankGroup]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    program = tmp_path / "worker.py"
    program.write_text(PROGRAM)
    before = torch.get_num_threads()
    result = ProcessExecutor(ProcessSettings(threads=3, shared_memory=request.param)).start(
        LaunchSpec(
            size=3,
            device=torch.device("cpu"),
            command=(sys.executable, str(program)),
            line=lambda rank, rendezvous: f"{rank} {rendezvous}\n".encode(),
            run_worker_rank=lambda rank, endpoint: None,
        )
    )
    assert isinstance(result.collectives, SharedCollectives if request.param and is_offered() else GroupCollectives)
    yield result
    result.send(b"end")
    result.close()
    torch.set_num_threads(before)


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


def test_without_memory_to_share(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(size: int) -> int:
        raise PermissionError("not permitted here")

    spec: Any = type("LaunchSpec", (), {"device": torch.device("cpu"), "size": 2})
    monkeypatch.setattr(processes, "memory_file", refused)
    assert processes._memory(spec, ProcessSettings()) is None
    monkeypatch.undo()
    spec.device = torch.device("cuda", 0)
    assert processes._memory(spec, ProcessSettings()) is None


def test_one_that_does_not_heed_the_end_is_killed(rank_group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "CLOSE_TIMEOUT", 0.2)
    pids = [process.pid for process in rank_group._processes]
    folder = rank_group._folder
    assert folder.stat().st_mode & 0o077 == 0, "nobody else may connect"
    rank_group.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert not folder.exists()


def test_threads_are_shared_unless_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)))
    assert processes._threads(ProcessSettings(), 4) == 3
    assert processes._threads(ProcessSettings(), 32) == 1
    assert processes._threads(ProcessSettings(threads=5), 4) == 5
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert processes._threads(ProcessSettings(), 4) is None
    assert processes._threads(ProcessSettings(threads=5), 4) == 5
