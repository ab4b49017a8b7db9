"""Grammars that do not return when the engine's main thread calls them."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from sglang_plug import AllowedTokens, Grammar, Request, SamplingParams, TokenDecision
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug_backends.structured_outputs.batch_grammars import TOO_SLOW, Grammars, current_grammar_call
from sglang_plug_backends.structured_outputs.grammar_guard import GrammarGuard
from sglang_plug_backends.structured_outputs.grammar_state import GrammarState

TIMEOUT = 0.2


class Endless(Grammar):
    """A grammar that computes until it is interrupted."""

    def __init__(self, *, filling: bool = False, accepting: bool = False, forcing: bool = False) -> None:
        self._filling, self._accepting, self._forcing = filling, accepting, forcing

    def fill(self, mask: Tensor, row: int) -> None:
        mask[row] = -1
        _spin(self._filling)

    def accept(self, token: int) -> bool:
        _spin(self._accepting)
        return True

    def rollback(self, count: int) -> None:
        pass

    @property
    def may_end(self) -> bool:
        return False

    @property
    def ended(self) -> bool:
        return False

    def forced(self) -> bytes:
        _spin(self._forcing)
        return b""


def _spin(endless: bool) -> None:
    while endless:
        pass


def sequence() -> Sequence:
    return Sequence.of(Request(id="theirs", tokens=(1, 2), params=SamplingParams()), 100, constrained=True)


def quick(grammar: Grammar) -> GrammarState:
    """Return the state of a grammar that is called without threads."""
    return GrammarState(grammar, quick=True)


def filled(grammars: Grammars, *states: GrammarState) -> AllowedTokens:
    """Return the masks of new sequences with these grammars."""
    return grammars.start([sequence() for _ in states], dict(enumerate(states))).result()


def followed(grammars: Grammars, *states: GrammarState) -> list[TokenDecision]:
    """Return the decisions after token 5 was sampled for new sequences with these grammars."""
    decisions = grammars.follow([sequence() for _ in states], dict(enumerate(states)), [5] * len(states))
    return [decisions[row] for row in range(len(states))]


@pytest.fixture
def guard() -> Iterator[GrammarGuard]:
    """Return a guard that checks every few milliseconds."""
    before, done = signal.getsignal(signal.SIGUSR1), threading.Event()
    guard = GrammarGuard(TIMEOUT)

    def check() -> None:
        while not done.wait(0.01):
            guard.check()

    thread = threading.Thread(target=check)
    thread.start()
    yield guard
    done.set()
    thread.join()
    signal.signal(signal.SIGUSR1, before)


def test_a_mask_that_is_never_filled_ends_its_request_alone(guard: GrammarGuard) -> None:
    result = filled(Grammars(64), quick(Endless(filling=True)), quick(Endless()))
    assert {row: str(error) for row, error in result.errors.items()} == {0: TOO_SLOW}
    assert torch.equal(result.mask, torch.tensor([[0, 0], [-1, -1]], dtype=torch.int32))


@pytest.mark.parametrize("where", ["accepting", "forcing"])
def test_a_token_that_is_never_accepted_ends_its_request_alone(guard: GrammarGuard, where: str) -> None:
    endless = quick(Endless(**{where: True}))
    endless.forced_tokenizer = object()  # type: ignore[assignment]  # asked for what is forced
    decisions = followed(Grammars(64), endless, quick(Endless()))
    assert str(decisions[0].error) == TOO_SLOW and decisions[0].error is not None and decisions[0].error.status == 400
    assert decisions[1].error is None


@pytest.mark.parametrize("where", ["filling", "accepting", "forcing"])
def test_where_nobody_can_interrupt_threads_are_asked(where: str) -> None:
    end = threading.Event()

    class Waiting(Endless):
        quick = True

        def fill(self, mask: Tensor, row: int) -> None:
            mask[row] = -1
            self._wait("filling")

        def accept(self, token: int) -> bool:
            return self._wait("accepting")

        def forced(self) -> bytes:
            self._wait("forcing")
            return b""

        def _wait(self, call: str) -> bool:
            return self.quick or call != where or end.wait(60)

    grammar = Waiting()
    state = GrammarState(grammar, forced_tokenizer=object())  # type: ignore[arg-type]
    grammars = Grammars(64, timeout=TIMEOUT, guarded=False)

    def step() -> str:
        error = filled(grammars, state).errors.get(0) or followed(grammars, state)[0].error
        return str(error or "")

    try:
        assert step() == ""
        grammar.quick = False
        assert step() == TOO_SLOW
    finally:
        end.set()


def test_nothing_else_is_interrupted(guard: GrammarGuard) -> None:
    """A signal interrupts neither other code nor a grammar call that has returned."""
    end = time.monotonic() + 3 * TIMEOUT
    while time.monotonic() < end:
        signal.raise_signal(signal.SIGUSR1)
        assert guard.current_call() is None
    assert current_grammar_call(sys._getframe()) is None


def test_the_current_grammar_call_is_named() -> None:
    names: list[str] = []

    class NamesCall(Endless):
        def accept(self, token: int) -> bool:
            names.append(str(current_grammar_call(sys._getframe())))
            return True

    followed(Grammars(64), quick(NamesCall()))
    name = f"{__name__}.test_the_current_grammar_call_is_named.<locals>.NamesCall"
    assert names == [f"the grammar of request 'theirs' ({name})"]
