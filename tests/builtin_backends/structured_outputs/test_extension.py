"""The extension of structured outputs keeps the contract, and follows the grammars of its own rows only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from sglang_plug import Constraint, EngineConfig, Plugins, ReasoningPrefix, Request, RequestError, Vocabulary
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.testing import check_step_extension
from sglang_plug_backends.structured_outputs.batch_grammars import Grammars
from sglang_plug_backends.structured_outputs.compiler import GrammarSources
from sglang_plug_backends.structured_outputs.constraints import Constraints
from sglang_plug_backends.structured_outputs.extension import StructuredOutputs
from sglang_plug_backends.structured_outputs.grammar_state import GrammarState
from tests.compiling import InProcessCompiler

from .grammars_of_words import VOCABULARY, Words, extension, follow, sequence, start, state

LETTERS = "abcdefghijklmno"
SIZE = len(LETTERS) + 1


class Spelling:
    """A compiler for a vocabulary of letters, whose last token ends outputs."""

    def __init__(self) -> None:
        self.vocabulary = Vocabulary(
            [*(letter.encode() for letter in LETTERS), b""],
            (SIZE - 1,),
            encode=lambda text: list(map(LETTERS.find, text)),
        )

    def sources(self) -> GrammarSources:
        components = (Plugins.discover().get("grammar", "xgrammar"),)
        return GrammarSources(EngineConfig(), components, ("xgrammar",), lambda: self.vocabulary)


Make = Callable[..., StructuredOutputs]


@pytest.fixture
def make() -> Iterator[Make]:
    """Return ``make(jump)``, which builds an extension that compiles for letters."""
    created: list[StructuredOutputs] = []

    def build(jump: bool = True) -> StructuredOutputs:
        constraints = Constraints(InProcessCompiler(Spelling().sources()))
        created.append(StructuredOutputs(constraints, Grammars(SIZE, jump=jump), None, vocab_size=SIZE))
        return created[-1]

    yield build
    for structured in created:
        structured.close()


@pytest.mark.parametrize("jump", [True, False])
def test_structured_outputs_keep_the_contract(make: Make, jump: bool) -> None:
    constraints = (
        None,
        Constraint("regex", "(abc|abd)+"),
        Constraint("regex", "a?"),
        Constraint("regex", "[a-c]{3,60}"),
    )
    check_step_extension(make(jump), fields={"constraint": constraints})


def test_outputs_behind_a_reasoning_prefix_keep_the_contract(make: Make) -> None:
    prefixes = (None, None, ReasoningPrefix(((0,), (1,), (2,))))
    constraints = (None, *[Constraint("regex", "[d-o]{2,9}")] * 2)
    check_step_extension(make(), fields={"constraint": constraints, "reasoning_prefix": prefixes})


def test_nothing_is_done_for_rows_without_grammars() -> None:
    structured = extension()
    assert start(structured, [sequence(None)]) is None
    assert follow(structured, [sequence(None), sequence(Words((5,)))], [5, -1]) == {}


class Unread(list[Sequence]):
    """A list of rows that must not be iterated over."""

    def __iter__(self) -> Iterator[Sequence]:
        raise AssertionError


def test_rows_are_not_looked_at_while_no_output_follows_a_grammar() -> None:
    structured, constrained = extension(), sequence(Words((5,)))
    unread = Unread([sequence(None)])
    for _ in range(2):
        assert structured.allowed(unread, asynchronous=False) is None and structured.sampled(unread, [5]) == {}
        assert start(structured, [constrained]) is not None
        structured.finished(constrained)


def test_sequences_that_another_extension_constrains_are_left_alone() -> None:
    structured, other = extension(), Sequence.of(Request(id="other", tokens=(1, 2)), 100, constrained=True)
    assert start(structured, [other]) is None and follow(structured, [other], [5]) == {}
    structured.finished(other)


def test_each_extension_follows_its_own_grammars() -> None:
    """Two engines of one process do not share state."""
    first, second = extension(), extension()
    seq = sequence(Words((5,)))
    first.follow(seq, state(seq))
    del seq.extras["state"]
    assert first.allowed([seq], asynchronous=False) is not None
    assert second.allowed([seq], asynchronous=False) is None


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        (ReasoningPrefix(()), "needs an end marker"),
        (ReasoningPrefix(((),)), "needs an end marker"),
        (ReasoningPrefix(((1,), ())), "needs an end marker"),
        (ReasoningPrefix(((1,),), (70,)), "reasoning_prefix is not in the vocabulary of 70 tokens"),
        (ReasoningPrefix(((-1,),)), "reasoning_prefix is not in the vocabulary"),
    ],
)
def test_bad_reasoning_prefixes_are_refused(prefix: ReasoningPrefix, message: str) -> None:
    request = Request(id="a", tokens=(1,), constraint=Constraint("regex", "a"), reasoning_prefix=prefix)
    with pytest.raises(RequestError, match=message):
        extension().admit(Sequence.of(request, 9))


def test_without_a_guard_nobody_is_blamed() -> None:
    structured = extension()
    structured.check_step()
    assert structured.blocking_request() is None


class Blocked(Words):
    """A grammar whose ``ended`` waits until its gate is opened."""

    @property
    def ended(self) -> bool:
        assert self.gate is not None
        return not self.gate.wait(240)


class Compiled:
    """Constraints with a grammar for each request id."""

    def __init__(self, **grammars: Words) -> None:
        self._grammars = grammars
        self._released: list[tuple[Sequence, GrammarState]] = []

    def hold(self, sequence: Sequence) -> None:
        self._released.append((sequence, GrammarState(self._grammars[sequence.request.id])))

    def release(self) -> list[tuple[Sequence, GrammarState]]:
        released, self._released = self._released, []
        return released


def test_no_step_waits_for_what_a_grammar_forces_at_the_beginning() -> None:
    blocked = Blocked((5,))
    blocked.gate = threading.Event()
    compiled = Compiled(slow=blocked, aborted=blocked, quick=Words((5,)))
    structured = StructuredOutputs(compiled, Grammars(VOCABULARY, timeout=240), None, vocab_size=VOCABULARY)  # type: ignore[arg-type]
    held = {
        id: Sequence.of(Request(id=id, tokens=(1,), constraint=Constraint("regex", "a")), 9, constrained=True)
        for id in ("slow", "aborted", "quick")
    }

    def next_ready() -> str:
        while not (ready := structured.ready()):
            pass
        ((sequence, finish),) = [(ready.sequence, ready.finish) for ready in ready]
        assert finish is None
        return sequence.request.id

    assert all(structured.hold(sequence) for sequence in held.values())
    assert next_ready() == "quick"
    structured.finished(held["aborted"])
    blocked.gate.set()
    assert next_ready() == "slow"
    assert not structured.ready()
