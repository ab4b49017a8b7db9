"""A process exits after its cleanup, but without the interpreter's finalisation."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

PROGRAM = """
import atexit, sys, threading
from sglang_plug.system.process_exit import exit_process

class Held:
    def __del__(self):
        print("taken apart", flush=True)

held = Held()
ended = threading.Event()
atexit.register(print, "registered")
threading.Thread(target=lambda: (ended.wait(0.2), print("another thread"))).start()
print("not flushed", end=" ")
exit_process(7)
"""


def test_threads_and_what_is_registered_end_first() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout.split("\n") == ["not flushed another thread", "registered", ""]


def test_nobody_who_reads_is_no_reason_to_stay() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as output:
        command = [sys.executable, "-c", PROGRAM]
        buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, timeout=240, env=buffered)
    assert (done.returncode, done.stderr) == (7, "")


def test_a_thread_that_never_ends_is_no_reason_to_stay() -> None:
    program = """
        import threading
        from sglang_plug.system import process_exit as leaving

        leaving.EXIT_TIMEOUT = 0.2
        threading.Thread(target=threading.Event().wait).start()
        leaving.exit_process(7)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1
    assert "in wait" in done.stderr  # the stack traces show the thread
