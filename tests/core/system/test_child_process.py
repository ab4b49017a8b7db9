"""Child processes import nothing from the working directory, and leave signals to their parent."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_plug.system.child_process import child_environment, end_child, python_command, start_child

LISTENING = """
import sys
from sglang_plug.system.child_process import leave_signals_to_parent

sys.stdin.readline()
leave_signals_to_parent()
print("listening", flush=True)
sys.stdin.readline()
print("ends in order", flush=True)
"""


def test_pipes_may_be_large() -> None:
    child = start_child([sys.executable, "-c", LISTENING], stdout=subprocess.PIPE, pipe_bytes=1 << 19)
    assert child.stdin is not None and child.stdout is not None
    assert [fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) for pipe in (child.stdin, child.stdout)] == [1 << 19] * 2
    child.communicate(b"\n\n", 240)


def test_a_child_starts_where_the_system_refuses_large_pipes() -> None:
    child = start_child([sys.executable, "-c", LISTENING], stdout=subprocess.PIPE, pipe_bytes=(1 << 31) - 1)
    output, _ = child.communicate(b"\n\n", 240)
    assert (child.returncode, output) == (0, b"listening\nends in order\n")


def test_a_child_is_ended_with_what_it_was_not_told() -> None:
    child = start_child([sys.executable, "-c", LISTENING], stdout=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(b"not sent yet")
    end_child(child)
    assert child.returncode == -signal.SIGKILL
    assert child.stdin.closed and child.stdout.closed
    end_child(child)
    ended = start_child([sys.executable, "-c", ""])
    ended.wait(240)
    end_child(ended)
    assert ended.returncode == 0


def test_stop_signals_do_not_end_a_child_from_its_first_moment_on() -> None:
    child = start_child([sys.executable, "-c", LISTENING], stdout=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None
    child.send_signal(signal.SIGTERM)  # it is still starting
    child.send_signal(signal.SIGINT)
    child.stdin.write(b"\n")
    child.stdin.flush()
    assert child.stdout.readline() == b"listening\n"
    child.send_signal(signal.SIGTERM)
    child.send_signal(signal.SIGINT)
    output, _ = child.communicate(b"\n", 240)
    assert (child.returncode, output) == (0, b"ends in order\n")


def test_the_parent_still_receives_them() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    child = start_child([sys.executable, "-c", ""])
    child.communicate(timeout=240)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_child_takes_no_module_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("msgspec", "json", "sglang_plug"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # as in a session of the interactive interpreter
    done = subprocess.run(python_command("sglang_plug"), env=child_environment(), capture_output=True, timeout=240)
    assert b"usage: sglang-plug" in done.stderr
    assert sorted(os.listdir()) == ["json.py", "msgspec.py", "sglang_plug.py"]
