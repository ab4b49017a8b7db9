"""The processes of a test: their descendants, and the ports on which they listen."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TIMEOUT = 180.0
"""Seconds after which an expected event counts as missing."""
PACKAGE = Path(__file__).parents[1]
ENGINE = "sglang_plug.engine.processes.worker"
LISTENING = "0A"
LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


def free_port() -> int:
    """Return a port of the loopback interface that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def start(command: list[str], log: Path, **options: Any) -> subprocess.Popen[str]:
    """Start a Python command that finds the plugin; what it prints goes to ``log``."""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE), "OMP_NUM_THREADS": "1"}
    environment.pop("RAY_ADDRESS", None)
    with log.open("w") as file:
        return subprocess.Popen(
            [sys.executable, *command], stdout=file, stderr=subprocess.STDOUT, text=True, env=environment, **options
        )


def until(holds: Callable[[], bool], event: str, log: Path | None = None) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + TIMEOUT
    while not holds():
        if time.monotonic() > deadline:
            log_text = "" if log is None else "\n" + log.read_text()[-6000:]
            raise AssertionError(f"{event} did not happen within {TIMEOUT:g} s{log_text}")
        time.sleep(0.1)


def descendants(pid: int) -> dict[int, str]:
    """Map the process ids of all descendants to their command lines."""
    parents: dict[int, int] = {}
    commands: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                commands[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
            except (FileNotFoundError, ProcessLookupError):
                continue

    def descends(child: int) -> bool:
        while child in parents:
            child = parents[child]
            if child == pid:
                return True
        return False

    return {child: commands[child] for child in parents if child in commands and descends(child)}


def engines(pid: int) -> list[int]:
    """Return the process ids of the engines below ``pid``."""
    return [child for child, command in descendants(pid).items() if ENGINE in command]


def is_running(pid: int) -> bool:
    """Report whether a process exists and is not just waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def ports_beyond_loopback(pids: list[int]) -> set[int]:
    """Return the ports on which processes listen and other machines could reach them."""
    sockets = set[str]()
    for pid in pids:
        try:
            links = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        sockets |= {link[8:-1] for link in links if link.startswith("socket:[")}
    reachable = set[int]()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and fields[9] in sockets and fields[1].partition(":")[0] not in LOOPBACK:
                reachable.add(int(fields[1].partition(":")[2], 16))
    return reachable
