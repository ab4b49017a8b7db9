"""Grammar backends over a vocabulary of bytes, and outputs that are drawn or fed to them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch

from sglang_plug import Constraint, Grammar, GrammarBackend, Plugins, Vocabulary

PIECES = [
    b"",
    *(bytes([one]) for one in range(256)),
    b'{"',
    b'": ',
    b', "',
    b'"}',
    b'"a": ',
    b"ab",
    "é".encode(),
    b"\\u",
]
CLOSING = (b'"', b"}", b"]", b'"}')
VOCABULARY = Vocabulary(PIECES, (0,))

Factory = Callable[[], Grammar]


class Compiled:
    """One constraint, ready for outputs."""

    def __init__(self, factory: Factory) -> None:
        self._factory = factory

    def begin(self) -> Grammar:
        """A new output."""
        return self._factory()

    def accepts(self, text: str | bytes) -> bool:
        """True if ``text``, byte by byte, is a whole output."""
        grammar = self._factory()
        encoded = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        return all(grammar.accept(1 + one) for one in encoded) and grammar.may_end

    def draw(self, seed: int, most: int = 300) -> bytes | None:
        """An output at random, drawn from the masks; ``None`` if it does not end."""
        source, grammar, text = random.Random(seed), self._factory(), b""
        for _ in range(most):
            if grammar.ended or (grammar.may_end and source.random() < 0.5):
                return text
            allowed = allowed_tokens(grammar)
            assert allowed, f"no way on after {text!r}"
            closing = [one for one in allowed if PIECES[one] in CLOSING]
            token = source.choice(closing if closing and source.random() < 0.4 else allowed)
            assert grammar.accept(token)
            text += PIECES[token]
        return None

    def drawn(self, count: int) -> Iterator[bytes]:
        """Those of ``count`` random outputs that end."""
        return (text for seed in range(count) if (text := self.draw(seed)) is not None)


def allowed_tokens(grammar: Grammar) -> list[int]:
    """What may come next."""
    mask = torch.full((2, VOCABULARY.words), -1, dtype=torch.int32)
    grammar.fill(mask, 1)
    return [32 * at + bit for at, word in enumerate(mask[1].tolist()) for bit in range(32) if word >> bit & 1]


class Backend:
    """Compiles, through the portable form."""

    def __init__(self, name: str, **settings: Any) -> None:
        component = Plugins.discover().get("grammar", name)
        chosen = type(component.settings())(**settings)
        build = component.load(GrammarBackend)
        self.name = name
        self.backend, self._other = build(VOCABULARY, chosen), build(VOCABULARY, chosen)

    def __call__(self, kind: Any, source: Any = "") -> Compiled:
        """Compile, or fail."""
        constraint = Constraint(kind, source if isinstance(source, str) else json.dumps(source))
        assert self.backend.refuses(constraint) is None
        return Compiled(self._other.load(constraint, self.backend.compile(constraint)))

    def refusal(self, kind: Any, source: Any = "") -> str:
        """Why it is refused; empty if it is not."""
        return self.backend.refuses(Constraint(kind, source if isinstance(source, str) else json.dumps(source))) or ""


@cache
def backend_with(name: str, **settings: Any) -> Backend:
    if component := Plugins.discover().get("grammar", name).spec.needs:
        pytest.importorskip(component[0])
    return Backend(name, **settings)


@pytest.fixture
def grammar_backends() -> Callable[..., Backend]:
    """``grammar_backends(name, **settings)``."""
    return backend_with
