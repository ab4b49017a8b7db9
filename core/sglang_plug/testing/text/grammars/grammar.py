"""Conformance test of grammar backends: constraints must hold for every tokenization of a text."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from operator import itemgetter

import torch
from torch import Tensor

from sglang_plug.contracts.text.grammar import (
    CONSTRAINT_KINDS,
    Constraint,
    ConstraintError,
    ConstraintKind,
    Grammar,
    GrammarBackend,
)
from sglang_plug.contracts.text.vocabulary import MASK_BITS, Vocabulary
from sglang_plug.plugins.registry import Plugins
from sglang_plug.plugins.specs import GrammarSpec

from .grammar_cases import GrammarCase, Writings, grammar_cases
from .shared_use import check_shared_use

WALKS = 6
"""Number of random outputs for each case."""
STEPS = 80
"""Greatest number of tokens of a random output."""
END_PROBABILITY = 0.3
"""Probability that a random output ends where it may."""
PROBES = 6
"""Number of tokens, forbidden or allowed, that are tried at each step of a random output."""
STRAY = 0x5A5A5A5A
"""Content of the rows of a mask before they are filled."""

LONGER = """
{" ": ":_ ":_" ",_" "} "] "}} ],_" ":_[ ":_{" }} ]} [[ {} [] [{ ,_ _" __ true false null alse ru 12 00 01 -1 0. .5 e+ 1e
\\\\ \\" \\n \\u \\u00 abc bc ab aa hello _A (( )) () +1 <call> </ call é éà 漢字 字 🙂 é" é漢
"""
"""Texts of several characters; ``_`` is a blank."""
HALVES = (b"\xc3", b'"\xc3', b"\xa9\xc3", b"\xe6\xbc", b"\xa2", b"\x9f\x99", b'\x82"', b"a\xf0\x9f")
"""Parts of characters, alone and next to others."""


def check_grammar_backend(
    name_or_class: str | type[GrammarBackend],
    *,
    settings: object = None,
    kinds: Collection[ConstraintKind] | None = None,
    must: Collection[str] = (),
    refused: Collection[Constraint] = (),
) -> None:
    """Test a backend with constraints of each kind: known texts, random outputs, rollbacks, malformed constraints.

    A backend may refuse a constraint, but not one of ``must``, nor every constraint of a kind; it must enforce every
    constraint that it does not refuse.

    Args:
        name_or_class: the name a plugin declared, or the class itself.
        settings: passed to the backend; ``None`` and a name: the settings it declares, with their defaults.
        kinds: kinds of constraints to test; by default those that the plugin declares, or all for a class.
        must: names of cases, ``"KIND: NAME"``, that must not be refused.
        refused: constraints that must be refused, such as one beyond each limit of the backend.

    Raises:
        AssertionError: names the first case that fails, and how.
        PluginError: no plugin, or more than one, declares the name.
    """
    backend, settings, declared = _resolve(name_or_class, settings)
    kinds = declared if kinds is None else kinds
    vocabulary = small_vocabulary()
    compiling, serving = backend(vocabulary, settings), backend(vocabulary, settings)
    cases = [case for case in grammar_cases() if case.constraint.kind in kinds]
    unknown = set(must) - {case.name for case in cases}
    assert not unknown, f"there are no such cases: {', '.join(sorted(unknown))}"
    for constraint in refused:
        _check_refused(constraint, compiling, serving)
    enforced = set[str]()
    for case in cases:
        try:
            if _check(case, compiling, serving):
                enforced.add(case.constraint.kind)
            else:
                assert case.name not in must, f"it must not be refused: {compiling.refuses(case.constraint)}"
        except Exception as error:
            problem = str(error) if isinstance(error, AssertionError) else f"raised {type(error).__name__}: {error}"
            raise AssertionError(f"{backend.__name__} fails {case.name!r}: {problem}") from error
    check_shared_use(compiling, serving, [case for case in cases if case.constraint.kind in enforced and case.good])
    missing = set(kinds) - enforced
    assert not missing, f"{backend.__name__} refuses every {' and '.join(sorted(missing))}"


def _resolve(
    name_or_class: str | type[GrammarBackend], settings: object
) -> tuple[type[GrammarBackend], object, Collection[ConstraintKind]]:
    if not isinstance(name_or_class, str):
        return name_or_class, settings, CONSTRAINT_KINDS
    component = Plugins.discover().get("grammar", name_or_class)
    assert isinstance(component.spec, GrammarSpec)
    settings = component.settings() if settings is None else settings
    return component.load(GrammarBackend), settings, component.spec.forms


def small_vocabulary() -> Vocabulary:
    """Return special tokens, all single bytes, and longer tokens, some of them twice or with parts of characters."""
    longer = [text.replace("_", " ").encode() for text in (*LONGER.split(), "\n_", "\n")]
    pieces = [b"", b"", *(bytes([octet]) for octet in range(256)), b"", *longer, *HALVES, *longer[:3], b"", b"", b""]
    return Vocabulary(pieces, (1, len(pieces) - 2))


def _check(case: GrammarCase, compiling: GrammarBackend, serving: GrammarBackend) -> bool:
    """Test a case; return False if it is refused."""
    make = _loaded(case.constraint, compiling, serving)
    if make is None:
        return False
    assert not case.broken, "it must be refused"
    vocabulary = serving.vocabulary
    tokenise = _Tokeniser(vocabulary, random.Random(case.name))
    for writings in case.good:
        _check_good(make, writings, tokenise)
    for writings in case.bad:
        for text in writings:
            for tokens in tokenise(text):
                assert not _Output(make(), vocabulary).takes(tokens), f"{text!r} can be written, as {tokens}"
    ends = 0
    for walk in range(WALKS):
        ends += _walk(
            _Output(make(), vocabulary), _Output(make(), vocabulary), case, random.Random(f"{case.name}{walk}")
        )
    return True


def _check_refused(constraint: Constraint, compiling: GrammarBackend, serving: GrammarBackend) -> None:
    """Check that a constraint is refused, when it is compiled at the latest."""
    source = f"{constraint.source[:80]!r} of {len(constraint.source)} characters"
    where = f"{type(compiling).__name__} fails {constraint.kind}: {source}"
    try:
        make = _loaded(constraint, compiling, serving)
    except Exception as error:
        problem = str(error) if isinstance(error, AssertionError) else f"raised {type(error).__name__}: {error}"
        raise AssertionError(f"{where}: {problem}") from error
    assert make is None, f"{where}: it must be refused"


def _loaded(constraint: Constraint, compiling: GrammarBackend, serving: GrammarBackend) -> Callable[[], Grammar] | None:
    """Compile and load a constraint; return ``None`` if both instances refuse it with a reason."""
    reason = compiling.refuses(constraint)
    assert reason == serving.refuses(constraint), "two instances do not refuse the same"
    assert reason is None or reason.strip(), "it is refused without a reason"
    try:
        compiled = compiling.compile(constraint)
    except ConstraintError as error:
        assert str(error).strip(), "it is refused without a reason"
        return None
    assert reason is None, f"refuses() says {reason!r}, but compile() does not"
    assert isinstance(compiled, bytes), f"compile() returned {type(compiled).__name__}, not bytes"
    return serving.load(constraint, compiled)


def _check_good(make: Callable[[], Grammar], writings: Writings, tokenise: _Tokeniser) -> None:
    """Check that one writing can be produced, in every tokenization."""
    stuck = []
    for text in writings:
        whole, *others = tokenise(text)
        if not _Output(make(), tokenise.vocabulary).takes(whole):
            stuck.append(text)
            continue
        for tokens in others:
            output = _Output(make(), tokenise.vocabulary)
            assert output.takes(tokens), f"{text!r} can be written as {whole}, but not as {tokens}"
        return
    raise AssertionError(f"{stuck[0]!r} cannot be written" + (", in no other way either" if len(stuck) > 1 else ""))


class _Tokeniser:
    """Tokenizes a text by the longest tokens first, by single bytes, and at random."""

    def __init__(self, vocabulary: Vocabulary, chance: random.Random) -> None:
        self.vocabulary, self._chance = vocabulary, chance
        self._ids: dict[bytes, list[int]] = {}
        for token, piece in enumerate(vocabulary.pieces):
            self._ids.setdefault(piece, []).append(token)
        self._longest = max(map(len, self._ids))

    def __call__(self, text: str) -> list[list[int]]:
        data = text.encode()
        longest, shortest = itemgetter(-1), itemgetter(0)
        return [self._cut(data, pick) for pick in (longest, shortest, self._chance.choice, self._chance.choice)]

    def _cut(self, data: bytes, pick: Callable[[Sequence[bytes]], bytes]) -> list[int]:
        """Tokenize ``data``; ``pick`` chooses among the possible next pieces, ordered by length."""
        tokens, at = [], 0
        while at < len(data):
            fitting = [data[at : at + size] for size in range(1, self._longest + 1) if at + size <= len(data)]
            piece = pick([piece for piece in fitting if piece in self._ids])
            tokens.append(self._chance.choice(self._ids[piece]))
            at += len(piece)
        return tokens


class _Output:
    """One output under a grammar, whose answers are checked for consistency."""

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary) -> None:
        self.grammar, self._vocabulary = grammar, vocabulary
        self.tokens: list[int] = []

    @property
    def text(self) -> bytes:
        return b"".join(self._vocabulary.pieces[token] for token in self.tokens)

    def allowed(self) -> list[int]:
        """Return the tokens that may come next, and check ``may_end`` and ``ended`` against them."""
        mask = torch.full((3, self._vocabulary.words), STRAY, dtype=torch.int32)
        self.grammar.fill(mask, 1)
        assert bool((mask[::2] == STRAY).all()), f"{self}: fill() changed a row that is not its own"
        allowed = _tokens(mask[1])
        for token in allowed:
            assert token < self._vocabulary.size, f"{self}: token {token} is allowed, but there is none"
            assert self._vocabulary.pieces[token], f"{self}: special token {token} is allowed"
        ended, may_end = self.grammar.ended, self.grammar.may_end
        assert ended == (may_end and not allowed), f"{self}: ended is {ended}, may_end {may_end}, allowed {allowed[:9]}"
        assert allowed or may_end, f"{self}: nothing may follow, and it may not end"
        self._check_forced(allowed, may_end)
        return allowed

    def _check_forced(self, allowed: list[int], may_end: bool) -> None:
        forced = self.grammar.forced()
        if not forced:
            return
        assert not may_end, f"{self}: {forced!r} is forced, but the output may end"
        for token in allowed:
            piece = self._vocabulary.pieces[token]
            assert piece.startswith(forced) or forced.startswith(piece), f"{self}: {forced!r} is forced, not {piece!r}"

    def write_forced(self) -> int:
        """Append the forced text byte by byte; return the number of bytes."""
        forced = self.grammar.forced()
        for octet in forced:
            token = self._vocabulary.pieces.index(bytes([octet]))
            assert token in self.allowed(), f"{self}: {octet:#04x} is forced, but not allowed"
            self.accept(token)
        return len(forced)

    def accept(self, token: int) -> None:
        assert self.grammar.accept(token) is True, f"{self}: token {token} is allowed, but not accepted"
        self.tokens.append(token)

    def refuse(self, token: int) -> None:
        assert self.grammar.accept(token) is False, f"{self}: token {token} is not allowed, but accepted"

    def take_back(self, count: int) -> None:
        self.grammar.rollback(count)
        if count:
            del self.tokens[-count:]

    def takes(self, tokens: Sequence[int]) -> bool:
        """Return True if all of ``tokens`` are allowed in turn, and the output may then end."""
        for token in tokens:
            if token not in self.allowed():
                self.refuse(token)
                return False
            self.accept(token)
        self.allowed()
        return self.grammar.may_end

    def __str__(self) -> str:
        return f"after {self.text!r}" if self.tokens else "at the start"


def _tokens(row: Tensor) -> list[int]:
    bits = (row[:, None] >> torch.arange(MASK_BITS, dtype=torch.int32)) & 1
    allowed: list[int] = bits.flatten().nonzero().flatten().tolist()
    return allowed


def _walk(output: _Output, untouched: _Output, case: GrammarCase, chance: random.Random) -> bool:
    """Write a random output; wherever it may end, the case's judge must agree. Return True if it could end."""
    first, before = untouched.allowed(), [output.allowed()]
    ended = False
    for _ in range(STEPS):
        allowed = before[-1]
        if output.grammar.may_end:
            ended = True
            text = output.text.decode()
            assert case.judge(text), f"{text!r} may be written, as {output.tokens}"
            if not allowed or chance.random() < END_PROBABILITY:
                break
        _probe(output, allowed, chance)
        if chance.random() < 0.3:
            output.take_back(output.write_forced())
            assert output.allowed() == allowed, f"{output}: taking back what is forced leads elsewhere"
        output.accept(_pick(output, allowed, chance))
        before.append(output.allowed())
        if chance.random() < 0.1:
            count = chance.randint(0, len(output.tokens))
            output.take_back(count)
            del before[len(before) - count :]
            assert output.allowed() == before[-1], f"{output}: taking back {count} tokens leads elsewhere"
    for token in (-1, output._vocabulary.size, *output._vocabulary.stop_ids):
        output.refuse(token)
    assert output.allowed() == before[-1], f"{output}: refusing tokens changed what is allowed"
    output.take_back(len(output.tokens))
    assert output.allowed() == first, "taking back everything does not lead to the start"
    assert untouched.allowed() == first, "one output changed another"
    return ended


def _probe(output: _Output, allowed: list[int], chance: random.Random) -> None:
    """Check that ``accept`` agrees with the mask for some tokens, and that trying them changes nothing."""
    every, inside = range(output._vocabulary.size), set(allowed)
    for token in chance.sample(every, PROBES):
        if token in inside:
            output.accept(token)
            output.take_back(1)
        else:
            output.refuse(token)
    assert output.allowed() == allowed, f"{output}: trying tokens changed what is allowed"


def _pick(output: _Output, allowed: list[int], chance: random.Random) -> int:
    """Choose a token, often one that closes something, as outputs would hardly ever end otherwise."""
    pieces = output._vocabulary.pieces
    closing = [token for token in allowed if pieces[token][:1] in (b'"', b"}", b"]", b")")]
    return chance.choice(closing if closing and chance.random() < 0.4 else allowed)
