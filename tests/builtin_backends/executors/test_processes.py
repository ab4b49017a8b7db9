"""Ranks in processes, here of a program that only talks."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sglang_plug import Order, Team
from sglang_plug_backends.executors import processes
from sglang_plug_backends.executors.group import GroupCollectives
from sglang_plug_backends.executors.processes import ProcessExecutor, ProcessSettings
from sglang_plug_backends.executors.shared import SharedCollectives, is_offered

BOUND = 120.0
"""Seconds, only reached by what fails."""
PROGRAM = """
import os, sys, threading
import torch
from sglang_plug_backends.executors.processes import ProcessExecutor, ProcessSettings

rank, folder = sys.stdin.buffer.readline().decode().split()
threading.Thread(target=lambda: (sys.stdin.buffer.raw.read(), os._exit(3)), daemon=True).start()
seat = ProcessExecutor(ProcessSettings()).join(int(rank), 3, torch.device("cpu"), folder)
while (message := seat.receive()) != b"end":
    if message == b"die":
        os._exit(7)
    x = torch.full((2, 3), 10.0 ** int(rank), dtype=getattr(torch, message.decode()))
    seat.collectives.all_reduce(x.clone())
    seat.collectives.all_gather(x)
    seat.collectives.broadcast(x)
    assert x[0, 0] == 1
    seat.collectives.all_reduce(torch.tensor([float(os.environ["OMP_NUM_THREADS"])]))
os._exit(0)
"""


def until(true: Callable[[], Any]) -> Any:
    end = time.monotonic() + BOUND
    while not (found := true()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


@pytest.fixture(params=[True, False], ids=["shared memory", "sockets"])
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Team]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    program = tmp_path / "follower.py"
    program.write_text(PROGRAM)
    before = torch.get_num_threads()
    found = ProcessExecutor(ProcessSettings(threads=3, shared_memory=request.param)).start(
        Order(
            size=3,
            device=torch.device("cpu"),
            command=(sys.executable, str(program)),
            line=lambda rank, ticket: f"{rank} {ticket}\n".encode(),
            follow=lambda rank, seat: None,
        )
    )
    assert isinstance(found.collectives, SharedCollectives if request.param and is_offered() else GroupCollectives)
    yield found
    found.send(b"end")
    found.close()
    torch.set_num_threads(before)


def test_what_all_do_together(team: Team) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        team.send(str(dtype).removeprefix("torch.").encode())
        x = torch.ones(2, 3, dtype=dtype)
        assert torch.equal(team.collectives.all_reduce(x.clone()), torch.full((2, 3), 111, dtype=dtype))
        assert team.collectives.all_gather(x).tolist() == [[1] * 3 + [10] * 3 + [100] * 3] * 2
        team.collectives.broadcast(x)
        assert team.collectives.all_reduce(torch.tensor([0.0])).item() == 6.0, "threads of the two followers"
    assert torch.get_num_threads() == 3
    assert team.failure() is None


def test_one_that_ends_is_told(team: Team) -> None:
    team.send(b"die")
    if isinstance(team.collectives, SharedCollectives):
        with pytest.raises(ConnectionError, match=r"of the model ended \(exit code 7\)"):
            team.collectives.all_reduce(torch.ones(3))
    assert "of the model ended (exit code 7)" in until(team.failure)
    team.close()
    assert team.failure() is None


def test_without_memory_to_share(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(size: int) -> int:
        raise PermissionError("not permitted here")

    order: Any = type("Order", (), {"device": torch.device("cpu"), "size": 2})
    monkeypatch.setattr(processes, "memory_file", refused)
    assert processes._memory(order, ProcessSettings()) is None
    monkeypatch.undo()
    order.device = torch.device("cuda", 0)
    assert processes._memory(order, ProcessSettings()) is None


def test_one_that_does_not_heed_the_end_is_killed(team: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "CLOSE_TIMEOUT", 0.2)
    pids = [process.pid for process in team._processes]
    folder = team._folder
    assert folder.stat().st_mode & 0o077 == 0, "nobody else may connect"
    team.close()
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
