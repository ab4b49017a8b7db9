"""Tests of the deadline of a process that is asked to stop, each in a separate process."""

from __future__ import annotations

import subprocess
import sys
import textwrap

START = """
import asyncio, os, signal, threading, time
from sglang_plug_api.lifecycle.shutdown import Shutdown
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", START + textwrap.dedent(program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_a_blocked_event_loop_is_ended_by_force_and_the_engine_first() -> None:
    done = run("""
        async def stuck_task():
            threading.Event().wait()

        with Shutdown() as shutdown:
            shutdown.kill = lambda: print("killed", flush=True)
            shutdown.expect_end(0.1)
            asyncio.run(stuck_task())
    """)
    assert (done.returncode, done.stdout) == (1, "killed\n")
    assert "ended by force" in done.stderr and "in stuck_task" in done.stderr


def test_nobody_who_reads_the_log_does_not_hold_the_end_back() -> None:
    done = run("""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        try:
            while True:
                os.write(writing, bytes(4096))
        except BlockingIOError:
            os.set_blocking(writing, True)
        os.dup2(writing, 2)
        with Shutdown() as shutdown:
            shutdown.expect_end(0.1)
            threading.Event().wait()
    """)
    assert done.returncode == 1


def test_a_process_that_ends_in_time_is_left_alone() -> None:
    done = run("""
        with Shutdown() as shutdown:
            shutdown.expect_end(0.2)
        time.sleep(1.0)
        print([thread.name for thread in threading.enumerate()])
    """)
    assert (done.returncode, done.stdout) == (0, "['MainThread']\n")


def test_every_signal_is_passed_once_to_whoever_is_there() -> None:
    done = run("""
        async def main():
            os.kill(os.getpid(), signal.SIGINT)
            calls = []
            shutdown.on_signal(lambda: calls.append("first"))
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0)
            await asyncio.sleep(0.1)
            shutdown.on_signal(lambda: calls.append("second"))
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.1)
            print(calls, shutdown.signals, shutdown.exit_code)

        with Shutdown() as shutdown:
            asyncio.run(main())
        os.kill(os.getpid(), signal.SIGTERM)
    """)
    assert (done.returncode, done.stdout) == (0, "['first', 'first', 'second'] 3 130\n")
