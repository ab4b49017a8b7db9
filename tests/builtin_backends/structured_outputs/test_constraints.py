"""Sequences that wait for their grammars, with a compiler that a test blocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sglang_plug import ConfigError, Constraint, ConstraintError, Grammar, Request, RequestError, Vocabulary
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug_backends.structured_outputs.constraints import ENTRY_BYTES, CompilerLimits, Constraints
from sglang_plug_backends.structured_outputs.grammar_process import CompilerUnavailable

TIMEOUT = 240.0


class Backend:
    """A backend whose grammars are strings; ``unloadable`` cannot be loaded, and ``broken`` cannot be started."""

    vocabulary = Vocabulary([])

    def load(self, constraint: Constraint, compiled: bytes) -> Callable[[], Any]:
        if constraint.source == "unloadable":
            raise KeyError("x")

        def begin() -> str:
            if constraint.source == "broken":
                raise ValueError("no")
            return f"grammar of {compiled.decode()}"

        return begin

    def memory(self, compiled: bytes) -> int:
        return len(compiled)


class Gate:
    """A compiler that waits until a test sets ``opened``."""

    def __init__(self, error: str | None = None) -> None:
        self.error, self.compiled = error, list[str]()
        self.started, self.opened, self.begun = threading.Event(), threading.Event(), threading.Event()
        self.closed = False
        self.bytes_each = 10
        self.helpers: list[Gate] = []
        self.helper_error: str | None = None
        self.unavailable: str | None = None
        self.helper_unavailable: str | None = None

    def helper(self) -> Gate:
        self.helpers.append(Gate(self.helper_error))
        self.helpers[-1].unavailable = self.helper_unavailable
        self.helpers[-1].opened.set()
        return self.helpers[-1]

    def start(self) -> Any:
        self.started.set()
        if self.error is not None:
            self.opened.wait()
            raise ConfigError(self.error)
        return Backend()

    def compile(self, constraint: Constraint, is_wanted: Callable[[], bool]) -> bytes:
        if self.unavailable is not None:
            raise CompilerUnavailable(self.unavailable)
        self.begun.set()
        self.compiled.append(constraint.source)
        while not self.opened.wait(0.005):
            if not is_wanted():
                raise ConstraintError("given up", lasting=False)
        if constraint.source.startswith("bad"):
            raise ConstraintError(f"{constraint.source} is bad", lasting=not constraint.source.endswith("once"))
        if constraint.source == "bug":
            raise KeyError("x")
        return constraint.source.encode().ljust(self.bytes_each)

    def interrupt(self) -> None:
        self.opened.set()

    def close(self) -> None:
        self.closed = True


Make = Callable[..., Constraints]


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def make(gate: Gate) -> Iterator[Make]:
    created: list[Constraints] = []

    def build(compiler: Any = gate, **options: Any) -> Constraints:
        created.append(Constraints(compiler, **options))
        created[-1].start()
        return created[-1]

    yield build
    for constraints in created:
        constraints.close()


def sequence(id: str, source: str = "a", kind: Any = "regex") -> Sequence:
    return Sequence.of(Request(id=id, tokens=(1,), constraint=Constraint(kind, source)), 10)


def wait(held: Constraints, count: int) -> dict[str, str]:
    """Release sequences until there are ``count``; return their grammars or errors by request id."""
    outcomes: dict[str, str] = {}
    deadline = time.monotonic() + TIMEOUT
    while len(outcomes) < count:
        assert time.monotonic() < deadline, f"only {outcomes}"
        for sequence, outcome in held.release():
            is_error = isinstance(outcome, RequestError)
            outcomes[sequence.request.id] = f"{outcome.status} {outcome}" if is_error else str(outcome.grammar).strip()
        time.sleep(0.001)
    return outcomes


def test_the_compiler_starts_after_the_delay_or_with_the_first_constraint(make: Make, gate: Gate) -> None:
    gate.opened.set()
    soon = Gate()
    make(soon, start_delay=0.01)
    assert soon.started.wait(TIMEOUT)
    held = make(start_delay=10 * TIMEOUT)
    assert not gate.started.is_set()
    held.hold(sequence("a"))
    assert wait(held, 1) == {"a": "grammar of a"} and gate.started.is_set()


def test_a_compiler_that_was_not_started_is_closed(make: Make, gate: Gate) -> None:
    held = make(start_delay=10 * TIMEOUT)
    held.close()
    assert gate.closed and not gate.started.is_set()


def test_equal_constraints_are_compiled_once_and_remembered(make: Make, gate: Gate) -> None:
    held = make()
    for id in "abc":
        held.hold(sequence(id))
    held.hold(sequence("d", "other"))
    gate.begun.wait()
    assert list(held.release()) == [] and len(held) == 4
    gate.opened.set()
    assert wait(held, 4) == dict.fromkeys("abc", "grammar of a") | {"d": "grammar of other"}
    held.hold(sequence("e"))
    assert len(held) == 1
    assert wait(held, 1) == {"e": "grammar of a"}
    assert gate.compiled == ["a", "other"] and len(held) == 0


def test_errors_reach_every_waiting_request_and_lasting_ones_are_remembered(make: Make, gate: Gate) -> None:
    held = make()
    gate.opened.set()
    for round in range(2):
        for source in ("bad", "bad-once", "bug", "broken", "unloadable", "good"):
            held.hold(sequence(f"{source}{round}", source))
        outcomes = wait(held, 6)
        assert outcomes[f"bad{round}"] == "400 regex: bad is bad"
        assert outcomes[f"bad-once{round}"] == "400 regex: bad-once is bad"
        assert outcomes[f"bug{round}"].startswith("500") and "KeyError" in outcomes[f"bug{round}"]
        assert outcomes[f"unloadable{round}"].startswith("500")
        assert outcomes[f"broken{round}"].startswith("500 the grammar failed: ValueError")
        assert outcomes[f"good{round}"] == "grammar of good"
    assert sorted(gate.compiled) == sorted(["bad", "broken", "good"] + 2 * ["bad-once", "bug", "unloadable"])


def test_the_least_recently_used_are_forgotten(make: Make, gate: Gate) -> None:
    held = make(limits=CompilerLimits(cache_bytes=2 * (gate.bytes_each + 1 + ENTRY_BYTES)))
    gate.opened.set()
    for source in ("a", "b", "a", "c", "a", "b", "b"):
        held.hold(sequence(source, source))
        wait(held, 1)
    assert gate.compiled == ["a", "b", "c", "b"]
    gate.bytes_each = 10_000
    for _ in range(2):  # larger than the cache: served, not remembered
        held.hold(sequence("d", "d"))
        assert wait(held, 1) == {"d": "grammar of d"}
    assert gate.compiled[4:] == ["d", "d"]


def test_aborted_requests_are_dropped_and_their_compiling_given_up(make: Make, gate: Gate) -> None:
    held = make()
    for id, source in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "z")):
        held.hold(sequence(id, source))
    gate.begun.wait()
    assert held.abort("a") and not held.abort("a") and not held.abort("unknown")
    assert held.abort("c")  # not begun yet
    gate.opened.set()
    assert wait(held, 2) == {"b": "grammar of x", "d": "grammar of z"}
    assert gate.compiled == ["x", "z"]
    held.hold(sequence("e", "x"))
    assert held.abort("e") and len(held) == 0 and list(held.release()) == []


def test_one_that_comes_back_while_its_compiling_is_given_up(make: Make, gate: Gate) -> None:
    held = make()
    held.hold(sequence("a"))
    gate.begun.wait()
    held.hold(sequence("c", "z"))
    held.abort("a")
    deadline = time.monotonic() + TIMEOUT
    while gate.compiled != ["a", "z"]:  # the first one has been given up
        assert time.monotonic() < deadline
    held.hold(sequence("b"))
    gate.opened.set()
    assert wait(held, 2) == {"b": "grammar of a", "c": "grammar of z"}
    assert gate.compiled == ["a", "z", "a"]


def test_what_is_refused_at_once(make: Make, gate: Gate) -> None:
    with pytest.raises(RequestError, match="ebnf: .* cannot enforce"):
        make(forms={"regex"}).hold(sequence("a", kind="ebnf"))
    with pytest.raises(RequestError, match="at most 5 characters"):
        make(limits=CompilerLimits(max_characters=5)).hold(sequence("a", "abcdef"))
    held = make(limits=CompilerLimits(max_waiting=2))
    for source in ("a", "b", "a"):
        held.hold(sequence(source, source))
    with pytest.raises(RequestError) as caught:
        held.hold(sequence("c", "c"))
    assert caught.value.status == 503


def test_a_backend_that_cannot_start_refuses_what_waits_and_what_comes(make: Make) -> None:
    gate = Gate("the tokenizer is strange")
    held = make(gate)
    held.hold(sequence("a"))
    gate.opened.set()
    assert "the tokenizer is strange" in wait(held, 1)["a"]
    with pytest.raises(RequestError, match="strange"):
        held.hold(sequence("b"))
    held.close()
    assert gate.closed


class Clock:
    """A clock whose time a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wait_long(self) -> None:
        """Advance the time beyond the limit after which a second compiler starts."""
        self.now += 2 * CompilerLimits().long_wait


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_who_waits_behind_one_that_takes_long_is_helped(make: Make, gate: Gate, clock: Clock) -> None:
    held = make(clock=clock.monotonic)
    held.hold(sequence("a", "endless"))
    gate.begun.wait()
    for id in "bcd":
        held.hold(sequence(id, id))
    assert list(held.release()) == [] and gate.helpers == []
    clock.wait_long()
    assert wait(held, 3) == {id: f"grammar of {id}" for id in "bcd"}
    assert [helper.compiled for helper in gate.helpers] == [["b", "c", "d"]] and gate.compiled == ["endless"]
    held.close()
    assert gate.closed and gate.helpers[0].closed


def test_nobody_helps_while_nothing_waits(make: Make, gate: Gate, clock: Clock) -> None:
    held = make(clock=clock.monotonic)
    held.hold(sequence("a", "endless"))
    gate.begun.wait()
    for _ in range(10):
        clock.wait_long()
        assert list(held.release()) == []
    gate.opened.set()
    wait(held, 1)
    assert gate.helpers == []


def test_there_are_at_most_so_many_at_once(make: Make, gate: Gate, clock: Clock) -> None:
    held = make(clock=clock.monotonic)
    gate.helper = lambda: gate.helpers.append(Gate()) or gate.helpers[-1]  # type: ignore[method-assign,func-returns-value]
    for id in "abcdef":
        held.hold(sequence(id, id))
    deadline = time.monotonic() + TIMEOUT
    while len(gate.helpers) < CompilerLimits().workers - 1 or not all(helper.begun.is_set() for helper in gate.helpers):
        clock.wait_long()
        assert time.monotonic() < deadline and list(held.release()) == []
        time.sleep(0.005)
    for _ in range(10):
        clock.wait_long()
        assert list(held.release()) == []
    assert len(gate.helpers) == CompilerLimits().workers - 1
    for compiler in (gate, *gate.helpers):
        compiler.opened.set()
    assert len(wait(held, 6)) == 6


def test_many_quick_constraints_are_helped_when_the_last_has_waited_long(make: Make, gate: Gate, clock: Clock) -> None:
    """The second compiler starts although no single constraint takes long."""
    held = make(clock=clock.monotonic)
    for number in range(4):
        held.hold(sequence(str(number), str(number)))
    clock.wait_long()
    assert list(held.release()) == []
    assert len(gate.helpers) == 1 or not gate.begun.is_set()
    gate.opened.set()
    assert len(wait(held, 4)) == 4


def test_an_aborted_request_leaves_the_queue(make: Make, gate: Gate) -> None:
    held = make(limits=CompilerLimits(max_waiting=2))
    held.hold(sequence("a", "endless"))
    gate.begun.wait()
    for number in range(20):
        held.hold(sequence("b", f"b{number}"))
        assert held.abort("b")
    held.hold(sequence("c", "c"))
    gate.opened.set()
    assert wait(held, 2) == {"a": "grammar of endless", "c": "grammar of c"}
    assert gate.compiled == ["endless", "c"]


def test_a_compiler_that_is_unavailable_is_asked_again_by_the_next_request(make: Make, gate: Gate) -> None:
    gate.opened.set()
    gate.unavailable = "no memory to start it"
    held = make()
    held.hold(sequence("a"))
    assert wait(held, 1) == {"a": "503 no memory to start it; try again later"}
    gate.unavailable = None
    held.hold(sequence("b"))
    assert wait(held, 1) == {"b": "grammar of a"}


def test_a_helper_that_becomes_unavailable_gives_its_work_back(make: Make, gate: Gate, clock: Clock) -> None:
    gate.helper_unavailable = "killed"
    held = make(clock=clock.monotonic)
    held.hold(sequence("a", "slow"))
    gate.begun.wait()
    held.hold(sequence("b", "b"))
    clock.wait_long()
    deadline = time.monotonic() + TIMEOUT
    while not (gate.helpers and gate.helpers[0].closed):
        assert time.monotonic() < deadline and list(held.release()) == []
        time.sleep(0.005)
    gate.opened.set()
    assert wait(held, 2) == {"a": "grammar of slow", "b": "grammar of b"}


def test_a_helper_without_work_ends_and_another_may_come(make: Make, gate: Gate, clock: Clock) -> None:
    held = make(clock=clock.monotonic, limits=CompilerLimits(idle=0.02))
    held.hold(sequence("a", "endless"))
    gate.begun.wait()
    for id in "bc":
        held.hold(sequence(id, id))
        clock.wait_long()
        assert wait(held, 1) == {id: f"grammar of {id}"}
        deadline = time.monotonic() + TIMEOUT
        while not gate.helpers[-1].closed:
            assert time.monotonic() < deadline
            time.sleep(0.005)
    assert [helper.compiled for helper in gate.helpers] == [["b"], ["c"]]


def test_a_helper_that_cannot_start_leaves_the_work_to_the_first(make: Make, gate: Gate, clock: Clock) -> None:
    gate.helper_error = "no memory"
    held = make(clock=clock.monotonic)
    held.hold(sequence("a", "slow"))
    gate.begun.wait()
    held.hold(sequence("b"))
    clock.wait_long()
    deadline = time.monotonic() + TIMEOUT
    while not (gate.helpers and gate.helpers[0].closed):
        assert time.monotonic() < deadline and list(held.release()) == []
    gate.opened.set()
    assert wait(held, 2) == {"a": "grammar of slow", "b": "grammar of a"}


def test_closing_ends_what_is_being_compiled(make: Make, gate: Gate) -> None:
    held = make()
    held.hold(sequence("a"))
    gate.begun.wait()
    held.close()
    assert gate.closed and len(held) == 0


def test_the_grammar_type_is_what_backends_implement() -> None:
    assert Grammar.__abstractmethods__ == {"fill", "accept", "rollback", "may_end", "ended"}
