"""Conformance test of executors: a group of ranks that share no model."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from sglang_plug.config import ConfigError, PluginOptions
from sglang_plug.contracts.serving.executor import Executor, LaunchSpec, RankEndpoint, RankGroup
from sglang_plug.engine.tensor_parallel.worker_rank import rank_device
from sglang_plug.plugins.attribution import make
from sglang_plug.plugins.registry import Plugins
from sglang_plug.system.child_process import python_command
from sglang_plug.testing.lifecycle import released
from sglang_plug.testing.time_limit import within

from .collectives import check_collectives
from .worker import CHECK, END, FAIL, REPORT, WorkerLaunch, follow

COMMAND = python_command("sglang_plug.testing.rank_groups.process")
SIZES = (0, 1, 100, 3 << 20, 5, 70_000, 2)
"""Bytes of messages; small ones follow large ones."""
MANY = 300
POLL = 0.01


def check_rank_group(name: str, size: int, device: str, timeout: float, executor: Executor | None = None) -> None:
    """Start ranks without a model; check their operations and messages, and what happens when one of them fails.

    Args:
        name: name of the executor.
        size: number of ranks.
        device: device of rank 0.
        timeout: seconds that the ranks may take together, from their start to their end.
        executor: the executor; ``None``: the one that an installed plugin declared under ``name``.

    Raises:
        AssertionError: says what is wrong.
        ConfigError: the ranks cannot run here.
    """
    ranks = f"{size} ranks of {name!r} without a model"
    try:
        within(timeout, lambda: _check_ranks(name, size, device, timeout / 2, executor), f"using {ranks}")
    except (AssertionError, ConfigError):
        raise
    except Exception as error:
        raise AssertionError(f"{ranks} fail: {type(error).__name__}: {error}") from error


def _check_ranks(name: str, size: int, device: str, timeout: float, executor: Executor | None) -> None:
    if executor is None:
        executor = _declared(name)
    with tempfile.TemporaryDirectory(prefix="ranks-") as parent, released("close() of the ranks"):
        folder = Path(parent)
        _use_group(executor, _launch(name, size, torch.device(device), folder), folder, timeout)
        _check_ended(size, folder)


def _declared(name: str) -> Executor:
    component = Plugins.discover(PluginOptions()).get("executor", name)
    executor: Executor = make(component, component.settings(), base=Executor)
    return executor


def _launch(name: str, size: int, device: torch.device, folder: Path) -> LaunchSpec:
    def line(rank: int, rendezvous: str) -> bytes:
        launch = WorkerLaunch(rank, size, rank_device(device, rank), rendezvous, name, str(folder))
        return json.dumps(asdict(launch)).encode() + b"\n"

    def run(rank: int, endpoint: RankEndpoint) -> None:
        follow(rank, size, endpoint, torch.device(rank_device(device, rank)), folder)

    return LaunchSpec(size=size, device=device, command=COMMAND, line=line, run_worker_rank=run)


def _use_group(executor: Executor, launch: LaunchSpec, folder: Path, timeout: float) -> None:
    group = executor.start(launch)
    try:
        _check(group, launch.size, launch.device, folder, timeout)
    finally:
        group.close()


def _check(group: RankGroup, size: int, device: torch.device, folder: Path, timeout: float) -> None:
    collectives = group.collectives
    assert (collectives.rank, collectives.size) == (0, size), (
        f"the collectives of rank 0 are those of rank {collectives.rank} of {collectives.size}, not of {size}"
    )
    digest = hashlib.sha256()

    def send(*sizes: int) -> None:
        for number, count in enumerate(sizes):
            message = bytes((index * 7 + number) % 256 for index in range(min(count, 4096))) * max(1, count // 4096)
            digest.update(b"%d:" % len(message) + message)
            group.send(message)

    send(*SIZES, *[8] * MANY)
    group.send(CHECK)
    send(9)  # nobody receives it before the operations are done
    try:
        check_collectives(collectives, device)
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(_error_of(size, folder) or f"a collective operation fails: {error!r}") from error
    group.send(REPORT)
    for rank in range(1, size):
        _check_messages(rank, size, folder, digest.hexdigest(), timeout)
    failure = group.failure()
    assert failure is None, f"failure() is {failure!r} while all ranks run"
    group.send(FAIL)
    _wait(lambda: group.failure() is not None, timeout, lambda: "failure() is None although rank 1 has failed")
    group.send(END)


def _check_messages(rank: int, size: int, folder: Path, digest: str, timeout: float) -> None:
    file = folder / f"{rank}.messages"
    _wait(file.exists, timeout, lambda: _error_of(size, folder) or f"rank {rank} does not end its work")
    assert file.read_text() == digest, f"rank {rank} did not receive the messages as they were sent, in their order"


def _wait(holds: Callable[[], bool], timeout: float, message: Callable[[], str]) -> None:
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, message()
        time.sleep(POLL)


def _error_of(size: int, folder: Path) -> str:
    """Return what a worker found to be wrong; empty: nothing."""
    files = [folder / f"{rank}.{kind}" for kind in ("error", "failure") for rank in range(1, size)]
    return next((file.read_text() for file in files if file.exists()), "")


def _check_ended(size: int, folder: Path) -> None:
    assert not (error := _error_of(size, folder)), error
    for rank in range(1, size):
        file = folder / f"{rank}.process"
        assert file.exists(), f"rank {rank} of {size} was not started"
        process = int(file.read_text())
        assert process == os.getpid() or not _is_running(process), (
            f"the process {process} of rank {rank} still runs after close()"
        )


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return not Path("/proc").is_dir()
