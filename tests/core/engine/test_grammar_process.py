"""The compiling process, with a backend that sleeps, crashes and eats memory on demand."""

from __future__ import annotations

import contextlib
import os
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import ConfigError, Constraint, ConstraintError, PluginOptions
from sglang_plug.engine.grammar_process import GrammarProcess
from sglang_plug.engine.grammar_worker import Setup

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


class Fake(GrammarBackend):
    def __init__(self, vocabulary, settings):
        super().__init__(vocabulary, settings)
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
        return b"|".join([*self.vocabulary.pieces, constraint.source.encode(), str(os.getpid()).encode()])

    def load(self, constraint, compiled):
        raise NotImplementedError
"""

Start = Callable[..., GrammarProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start(**fields)``: a compiling process with the fake backend."""
    file = tmp_path / "fake_grammar.py"
    file.write_text(textwrap.dedent(BACKEND))
    started: list[GrammarProcess] = []

    def make(*, settings: Any = None, **fields: Any) -> GrammarProcess:
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
        started.append(GrammarProcess(Setup(plugins=options, **setup)))
        started[-1].start()
        return started[-1]

    yield make
    for one in started:
        one.close()


def compiled(process: GrammarProcess, source: str) -> bytes:
    return process.compile(Constraint("regex", source), lambda: True)


def pid_of(process: GrammarProcess) -> int:
    """Asked again where a machine that stood still was too slow for the time limit of the test."""
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
        ("crash", "more memory or deeper recursion", {}),
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
    asked: list[None] = []

    def is_wanted() -> bool:
        asked.append(None)
        return len(asked) < 3

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
    with pytest.raises(ConstraintError):
        compiled(process, "x")
    process.start()
    with pytest.raises(ConfigError, match="could not be started"):
        process.wait_ready()
    assert is_gone(pid)
    other = start()
    pid = pid_of(other)
    assert other._process is not None and other._process.stdin is not None
    other._process.stdin.close()  # as when the engine is killed
    assert other._process.wait(240) == 0
    deadline = time.monotonic() + 240
    while not is_gone(pid):
        assert time.monotonic() < deadline
