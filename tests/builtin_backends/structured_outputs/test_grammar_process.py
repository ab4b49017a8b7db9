"""The compiling process, with a backend that sleeps, crashes and allocates memory on demand."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import ConfigError, Constraint, ConstraintError, PluginOptions
from sglang_plug_backends.structured_outputs.grammar_process import (
    CompilerUnavailable,
    ComputingTime,
    GrammarProcess,
    spawn_worker,
)
from sglang_plug_backends.structured_outputs.grammar_worker import Setup

pytestmark = pytest.mark.whole_engine

BACKEND = """
from __future__ import annotations

import os
import time

from sglang_plug import ConfigError, ConstraintError, GrammarBackend, GrammarSpec, hookimpl


@hookimpl
def register_grammar_backends():
    yield GrammarSpec(name="fake", target=f"{__name__}:Fake", settings=f"{__name__}:Nothing")


from dataclasses import dataclass


@dataclass
class Nothing:
    broken: bool = False
    memory: bool = False
    killed_until: str = ""


class Fake(GrammarBackend):
    def __init__(self, vocabulary, settings):
        super().__init__(vocabulary, settings)
        if settings.killed_until and not os.path.exists(settings.killed_until):
            open(settings.killed_until, "w").close()
            os.kill(os.getpid(), 9)
        if settings.memory:
            raise MemoryError
        if settings.broken:
            raise ConfigError("this vocabulary has no letters")
        print("noise on standard output")

    def refuses(self, constraint):
        return "'not' at # cannot be enforced" if constraint.source == "not" else None

    def compile(self, constraint):
        match constraint.source:
            case "sleep":
                time.sleep(600)
            case "crash":
                os.abort()
            case "busy":
                while True:
                    pass
            case "memory":
                return bytes(200 << 20)
            case "deep":
                raise RecursionError
            case "bad":
                raise ConstraintError("expected ')'")
            case "half":
                raise ConstraintError("expected no " + chr(0xD800))
            case "bug":
                raise KeyError("x")
        if constraint.source.startswith("file "):  # writes its process id, and goes on when that is gone
            path = constraint.source.removeprefix("file ")
            if not os.path.exists(path):
                with open(path + ".tmp", "w") as file:
                    file.write(str(os.getpid()))
                os.rename(path + ".tmp", path)
                time.sleep(600)
        return b"|".join([*self.vocabulary.pieces, constraint.source.encode(), str(os.getpid()).encode()])

    def load(self, constraint, compiled):
        raise NotImplementedError
"""

Start = Callable[..., GrammarProcess]
Spawn = Callable[[], "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return ``start(**fields)``, which starts a compiling process with the fake backend."""
    file = tmp_path / "fake_grammar.py"
    file.write_text(textwrap.dedent(BACKEND))
    started: list[GrammarProcess] = []

    def make(*, settings: Any = None, spawn: Spawn = spawn_worker, **fields: Any) -> GrammarProcess:
        options = PluginOptions(files=(str(file),), settings={"fake": settings or {}})
        setup = {
            "backends": ("fake",),
            "pieces": [b"a", b"b"],
            "stop_ids": (),
            "special": {},
            "memory": 1 << 30,
            "timeout": 240.0,
            **fields,
        }
        started.append(GrammarProcess(lambda: Setup(plugins=options, **setup), threading.Lock(), spawn=spawn))
        started[-1].start()
        return started[-1]

    yield make
    for process in started:
        process.close()


def compiled(process: GrammarProcess, source: str) -> bytes:
    return process.compile(Constraint("regex", source), lambda: True)


def pid_of(process: GrammarProcess) -> int:
    """Return the id of the process; compile again if a slow machine exceeded the time limit of the test."""
    for _ in range(100):
        with contextlib.suppress(ConstraintError):
            return int(compiled(process, "x").rpartition(b"|")[2])
    raise AssertionError("nothing is compiled")


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_it_compiles_for_the_vocabulary_and_refuses_with_reasons(start: Start) -> None:
    process = start()
    assert compiled(process, "x").startswith(b"fake\0a|b|x|")
    for source, words in (("not", "'not' at # cannot"), ("bad", "expected"), ("bug", "KeyError")):
        with pytest.raises(ConstraintError, match=words) as caught:
            compiled(process, source)
        assert caught.value.lasting
    assert compiled(process, "y").startswith(b"fake\0a|b|y|")


def test_a_reason_may_repeat_what_has_no_bytes_and_the_process_stays(start: Start) -> None:
    process = start()
    before = pid_of(process)
    with pytest.raises(ConstraintError, match=r"expected no \\ud800") as caught:
        compiled(process, "half")
    assert caught.value.lasting and pid_of(process) == before


@pytest.mark.parametrize(
    ("source", "words", "fields"),
    [
        ("sleep", "takes more than 0.2 s", {"timeout": 0.2}),
        ("crash", r"ended 2 compiling processes in a row \(SIGABRT\)", {}),
        ("deep", "more memory or deeper recursion", {}),
        ("memory", "more memory or deeper recursion", {"memory": 64 << 20}),
    ],
)
def test_a_hostile_constraint_costs_the_process_and_nothing_else(
    start: Start, source: str, words: str, fields: dict[str, Any]
) -> None:
    process = start(**fields)
    first = pid_of(process)
    with pytest.raises(ConstraintError, match=words) as caught:
        compiled(process, source)
    assert not caught.value.lasting
    assert is_gone(first)
    assert pid_of(process) != first


def test_compiling_is_given_up_when_nobody_waits(start: Start) -> None:
    process = start()
    first = pid_of(process)
    checks: list[None] = []

    def is_wanted() -> bool:
        checks.append(None)
        return len(checks) < 3

    with pytest.raises(ConstraintError):
        process.compile(Constraint("regex", "sleep"), is_wanted)
    assert is_gone(first)


def test_a_backend_that_cannot_be_used_says_why(start: Start) -> None:
    with pytest.raises(ConfigError, match="no letters"):
        start(settings={"broken": True}).wait_ready()
    with pytest.raises(ConfigError, match="no grammar named 'fke'"):
        start(backends=("fke",)).wait_ready()


def test_it_ends_with_its_parent_and_when_told(start: Start) -> None:
    process = start()
    pid = pid_of(process)
    process.interrupt()
    with pytest.raises(CompilerUnavailable):
        compiled(process, "x")
    process.start()
    with pytest.raises(CompilerUnavailable, match="closing"):
        process.wait_ready()
    assert is_gone(pid)
    spawned: list[subprocess.Popen[bytes]] = []

    def spawn() -> subprocess.Popen[bytes]:
        spawned.append(spawn_worker())
        return spawned[-1]

    pid = pid_of(start(spawn=spawn))
    assert spawned[-1].pid == pid and spawned[-1].stdin is not None
    spawned[-1].stdin.close()  # as when the engine is killed
    assert spawned[-1].wait(240) == 0
    deadline = time.monotonic() + 240
    while not is_gone(pid):
        assert time.monotonic() < deadline


def test_a_constraint_whose_process_is_killed_is_compiled_by_another(start: Start, tmp_path: Path) -> None:
    process = start()
    pid_file = tmp_path / "pid"
    answers: list[bytes] = []
    thread = threading.Thread(target=lambda: answers.append(compiled(process, f"file {pid_file}")))
    thread.start()
    deadline = time.monotonic() + 240
    while not pid_file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    killed = int(pid_file.read_text())
    os.kill(killed, signal.SIGKILL)
    thread.join()
    assert answers and int(answers[0].rpartition(b"|")[2]) != killed


def test_a_process_that_is_killed_while_it_has_nothing_to_do_is_nobodys_fault(start: Start) -> None:
    process = start()
    for _ in range(3):
        killed = pid_of(process)
        os.kill(killed, signal.SIGKILL)
        assert pid_of(process) != killed


def test_a_process_that_is_killed_while_it_starts_is_started_again(start: Start, tmp_path: Path) -> None:
    process = start(settings={"killed_until": str(tmp_path / "killed")})
    assert compiled(process, "x").startswith(b"fake\0")


def test_processes_that_never_get_ready_make_the_compiler_unavailable(start: Start) -> None:
    process = start(settings={"memory": True})
    with pytest.raises(CompilerUnavailable, match=r"could not be started: exit status 1"):
        compiled(process, "x")
    with pytest.raises(CompilerUnavailable, match="a moment ago"):
        compiled(process, "x")


def test_a_process_that_cannot_be_spawned_makes_the_compiler_unavailable(start: Start, tmp_path: Path) -> None:
    def spawn() -> subprocess.Popen[bytes]:
        return subprocess.Popen([tmp_path / "missing"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    with pytest.raises(CompilerUnavailable, match="No such file"):
        compiled(start(spawn=spawn), "x")


def test_the_limit_counts_computing(start: Start) -> None:
    with pytest.raises(ConstraintError, match="takes more than 0.2 s"):
        compiled(start(timeout=0.2), "busy")


def test_a_process_that_does_not_compute_has_more_time_by_the_clock() -> None:
    idle = ComputingTime(os.getpid(), 0.0)
    assert idle.is_over(), "no time at all is over at once"
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        waiting = ComputingTime(process.pid, 60.0)
        assert not waiting.is_over()
        busy = ComputingTime(os.getpid(), 0.05)
        while not busy.is_over():
            pass
        assert busy.elapsed() >= 0.05
    finally:
        process.communicate()


def test_compiling_that_nobody_waits_for_goes_on_if_it_is_quick(start: Start) -> None:
    """Ending the process would cost more time than the compilation takes."""
    process = start()
    before = pid_of(process)
    with contextlib.suppress(ConstraintError):
        process.compile(Constraint("regex", "x"), lambda: False)
    assert pid_of(process) == before
