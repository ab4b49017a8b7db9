"""Outputs over the small vocabulary of the grammar backend tests."""

from __future__ import annotations

import json
from typing import Any

from sglang_plug import Constraint, Grammar, GrammarBackend
from sglang_plug.testing.text.grammars.grammar import small_vocabulary


def start(backend: GrammarBackend, kind: Any, source: Any) -> Grammar:
    """Start an output under a constraint, which must not be refused."""
    constraint = Constraint(kind, source if isinstance(source, str) else json.dumps(source))
    assert backend.refuses(constraint) is None
    return backend.load(constraint, backend.compile(constraint))()


def writes(grammar: Grammar, text: str) -> bool:
    """Return whether the single bytes of ``text`` are accepted, and then the end."""
    pieces = small_vocabulary().pieces
    return all(grammar.accept(pieces.index(bytes([item]))) for item in text.encode()) and grammar.may_end
