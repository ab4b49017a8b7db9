"""Tests of starting server processes, waiting for them and ending them."""

from __future__ import annotations

import shlex
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sglang_plug_lang.server_process import (
    PORTS,
    execute_shell_command,
    free_port,
    launch_server_cmd,
    terminate_process,
    wait_for_server,
)

FAMILY = """
import signal, subprocess, sys, time
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
process = subprocess.Popen([sys.executable, "-c", child], start_new_session=True, stdout=subprocess.PIPE)
process.stdout.readline()
open(sys.argv[1], "w").write(str(process.pid))
time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def until(holds: Any) -> None:
    deadline = time.monotonic() + 240
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_free_port_is_appended(capfd: Any) -> None:
    process, port = launch_server_cmd(
        "python -c 'import sys; print(sys.argv[1:], sys.executable)' \\\n --flag 'a b'", host="127.0.0.1"
    )
    assert process.wait() == 0
    assert capfd.readouterr().out == f"['--flag', 'a b', '--port', '{port}'] {sys.executable}\n"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
    assert port in range(*PORTS)


def test_where_those_ports_are_taken_any_other_will_do() -> None:
    with socket.socket() as other, socket.socket() as probe:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        port = free_port("127.0.0.1", ports=(taken, taken + 1))
        assert port != taken
        probe.bind(("127.0.0.1", port))


def test_a_given_port_is_used(capfd: Any) -> None:
    process, port = launch_server_cmd("python3 -c 'import sys; print(sys.argv[1:])'", port=1234)
    assert (process.wait(), port) == (0, 1234)
    assert capfd.readouterr().out == "['--port', '1234']\n"


def test_no_shell_is_involved(capfd: Any) -> None:
    assert execute_shell_command("echo $HOME `id` | cat").wait() == 0
    assert capfd.readouterr().out == "$HOME `id` | cat\n"
    for call in (execute_shell_command, launch_server_cmd):
        with pytest.raises(ValueError, match="empty"):
            call(" ")


def test_the_whole_family_ends(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    (tmp_path / "family.py").write_text(FAMILY)
    process = execute_shell_command(shlex.join(["python", str(tmp_path / "family.py"), str(file)]))
    until(lambda: file.exists() and file.read_text())
    child = int(file.read_text())
    assert alive(child)
    terminate_process(process)
    assert process.returncode == -signal.SIGTERM
    until(lambda: not alive(child))


def test_ending_what_has_ended() -> None:
    process = execute_shell_command("true")
    process.wait()
    terminate_process(process)
    assert process.returncode == 0


def test_waiting_for_a_server(answering: Any) -> None:
    attempts: list[int] = []

    def models(_: Any) -> tuple[int, Any]:
        attempts.append(1)
        return (503, {}) if len(attempts) < 3 else (200, {"data": []})

    answering.answers["/v1/models"] = models
    wait_for_server(answering.url + "/")
    assert len(attempts) == 3
    answering.answers["/v1/models"] = (401, {})
    wait_for_server(answering.url, api_key="sésame")


def test_waiting_in_vain() -> None:
    process = execute_shell_command("false")
    process.wait()
    with pytest.raises(RuntimeError, match="ended with 1"):
        wait_for_server("http://127.0.0.1:9", process=process)
    with pytest.raises(TimeoutError, match="within 0"):
        wait_for_server("http://127.0.0.1:9", timeout=0)
