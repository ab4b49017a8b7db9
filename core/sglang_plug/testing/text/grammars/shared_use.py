"""Grammars of several outputs at the same time, and of long outputs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

from sglang_plug.contracts.text.grammar import Constraint, ConstraintError, ConstraintKind, Grammar, GrammarBackend
from sglang_plug.testing.concurrency import check_threads
from sglang_plug.testing.growth import check_growth

from .grammar_cases import GrammarCase

AT_ONCE = 3
"""Constraints of each kind that are used in several threads."""
LENGTHS = (200, 1600)
"""Bytes of the outputs that are timed."""
ENDLESS: dict[ConstraintKind, tuple[str, bytes]] = {
    "regex": ("[ab]*", b"ab"),
    "ebnf": ("root ::= [ab]*", b"ab"),
    "json_object": ("", b'{"a": "'),
}
"""Constraints that allow outputs of any length: source, and the beginning of one, whose last byte may be repeated."""


def check_shared_use(compiling: GrammarBackend, serving: GrammarBackend, cases: Sequence[GrammarCase]) -> None:
    """Check that grammars do not disturb each other in several threads, and take time in proportion to the output.

    Args:
        compiling: compiles constraints.
        serving: loads and enforces them.
        cases: of kinds that are supported, with good texts.
    """
    kinds = list(dict.fromkeys(case.constraint.kind for case in cases))
    calls = dict[str, Callable[[], object]]()
    for kind in kinds:
        added = 0
        for case in cases:
            if (
                case.constraint.kind == kind
                and added < AT_ONCE
                and (make := _made(case.constraint, compiling, serving))
            ):
                calls[case.name] = _masks_of(make, serving, case.good[0][0].encode())
                added += 1
    if calls:
        check_threads(calls, "grammars of several outputs")
    for kind in kinds:
        if kind in ENDLESS and (make := _made(Constraint(kind, ENDLESS[kind][0]), compiling, serving)):
            _check_growth(make, serving, kind, ENDLESS[kind][1])


def _made(constraint: Constraint, compiling: GrammarBackend, serving: GrammarBackend) -> Callable[[], Grammar] | None:
    """Return the factory of a constraint's grammars; ``None`` if it is refused."""
    if compiling.refuses(constraint) is not None:
        return None
    try:
        return serving.load(constraint, compiling.compile(constraint))
    except ConstraintError:
        return None


_MAKING = threading.Lock()
"""Grammars are made by one thread at a time."""


def _masks_of(make: Callable[[], Grammar], backend: GrammarBackend, text: bytes) -> Callable[[], object]:
    """Return a call that writes ``text`` byte by byte, and returns the mask before each byte."""
    pieces = backend.vocabulary.pieces

    def call() -> object:
        with _MAKING:
            grammar = make()
        masks = list[object]()
        for octet in text:
            mask = torch.zeros(1, backend.vocabulary.words, dtype=torch.int32)
            grammar.fill(mask, 0)
            masks.append((mask.tolist(), grammar.accept(pieces.index(bytes([octet])))))
        return masks

    return call


def _check_growth(make: Callable[[], Grammar], backend: GrammarBackend, kind: str, beginning: bytes) -> None:
    pieces = backend.vocabulary.pieces
    first, repeated = [pieces.index(bytes([octet])) for octet in beginning], pieces.index(b"a")
    mask = torch.zeros(1, backend.vocabulary.words, dtype=torch.int32)

    def prepare(length: int) -> Callable[[], object]:
        grammar = make()

        def work() -> None:
            for token in [*first, *[repeated] * length]:
                grammar.fill(mask, 0)
                assert grammar.accept(token), f"{kind}: an output of {length} letters cannot be written"

        return work

    check_growth(prepare, LENGTHS, f"fill() and accept() of an output under a constraint of the kind {kind}")
