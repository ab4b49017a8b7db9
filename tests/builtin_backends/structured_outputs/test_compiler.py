"""Compilers of one engine: the objects that they share, and the setup of their processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from sglang_plug import ConfigError, EngineConfig, Plugins, Vocabulary
from sglang_plug_backends.structured_outputs.compiler import BackendCompiler, GrammarSources
from sglang_plug_backends.structured_outputs.grammar_worker import Setup

LETTERS = Vocabulary(
    [b"", b"", b"b", b"c", b"d", b"e"], (1,), {"<0>": 0}, lambda text: [ord(letter) - 96 for letter in text]
)


class Process:
    """A stand-in for a compiling process, which records its calls."""

    def __init__(self, setup: Callable[[], Setup]) -> None:
        self.make_setup, self.calls, self.closed = setup, list[str](), False

    @property
    def setup(self) -> Setup:
        return self.make_setup()

    def start(self) -> None:
        self.calls.append("start")

    def wait_ready(self) -> None:
        self.calls.append("wait_ready")

    def interrupt(self) -> None:
        self.calls.append("interrupt")
        self.closed = True

    def close(self) -> None:
        self.calls.append("close")


class Processes(list[Process]):
    """Creates stand-ins for compiling processes, and keeps them."""

    def make(self, setup: Callable[[], Setup], starting: threading.Lock) -> Any:
        self.append(Process(setup))
        return self[-1]


@pytest.fixture
def processes() -> Processes:
    return Processes()


@pytest.fixture
def reads() -> list[None]:
    """Return a list that gets an entry each time that the vocabulary is read."""
    return []


@pytest.fixture
def sources(reads: list[None]) -> GrammarSources:
    """Return the objects that compilers for xgrammar share."""

    def vocabulary() -> Vocabulary:
        reads.append(None)
        return LETTERS

    components = (Plugins.discover().get("grammar", "xgrammar"),)
    return GrammarSources(EngineConfig(), components, ("xgrammar",), vocabulary)


def test_helpers_share_the_backends_of_the_engine(sources: GrammarSources, processes: Processes) -> None:
    first = BackendCompiler(sources, make_process=processes.make)
    helper = first.helper()
    backends = first.start()
    assert helper.start() is backends
    first.interrupt()
    helper.close()
    assert [process.calls for process in processes] == [
        ["start", "wait_ready", "interrupt"],
        ["start", "wait_ready", "close"],
    ]
    assert processes[0].setup is processes[1].setup
    assert processes[0].setup.pieces[3:6] == [b"c", b"d", b"e"] and processes[0].setup.backends == ("xgrammar",)


def test_an_interrupted_compiler_starts_no_process(sources: GrammarSources, processes: Processes) -> None:
    interrupted = BackendCompiler(sources, make_process=processes.make)
    interrupted.interrupt()
    with pytest.raises(ConfigError, match="the engine is closing"):
        interrupted.start()
    assert [process.calls for process in processes] == [["interrupt"]]


def test_the_vocabulary_is_read_by_the_compiler_and_not_before(sources: GrammarSources, reads: list[None]) -> None:
    compilers = BackendCompiler(sources)
    assert compilers.helper() is not None and reads == []
