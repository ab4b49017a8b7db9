"""Grammar backends over a vocabulary of bytes, and outputs that are sampled from them or fed to them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy
import pytest
import torch

from sglang_plug import Constraint, Grammar, GrammarBackend, Plugins, Vocabulary

PIECES = [
    b"",
    *(bytes([index]) for index in range(256)),
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
    """A compiled constraint, whose outputs are sampled or checked."""

    def __init__(self, factory: Factory, vocabulary: Vocabulary) -> None:
        self._factory, self._size = factory, vocabulary.size
        self._texts = list(vocabulary.pieces)
        for name, token in vocabulary.special.items():
            self._texts[token] = name.encode()
        self._closing = [token for token, text in enumerate(self._texts) if text in CLOSING]
        self._by_start: dict[bytes, list[int]] = {}
        for token, text in enumerate(self._texts):
            self._by_start.setdefault(text[:1], []).append(token)

    def begin(self) -> Grammar:
        """Start a new output."""
        return self._factory()

    def accepts(self, text: str | bytes) -> bool:
        """Return True if ``text``, byte by byte, is a complete output."""
        grammar = self._factory()
        encoded = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        return all(grammar.accept(1 + item) for item in encoded) and grammar.may_end

    def sample(self, seed: int, max_tokens: int = 300) -> bytes | None:
        """Sample a random output from the masks; ``None`` if it does not end."""
        source, grammar, text = random.Random(seed), self._factory(), b""
        for _ in range(max_tokens):
            if grammar.ended or (grammar.may_end and source.random() < 0.5):
                return text
            token = self._random(source, allowed_bits(grammar, self._size), text)
            assert grammar.accept(token)
            text += self._texts[token]
        return None

    def steer(self, seed: int, wishes: Sequence[bytes], max_tokens: int = 1000) -> bytes | None:
        """Sample an output by a model that prefers one of ``wishes`` from time to time, as far as allowed."""
        source, grammar, text = random.Random(seed), self._factory(), b""
        wish = source.choice([b"", source.choice(wishes)])
        for _ in range(max_tokens):
            if grammar.ended or (grammar.may_end and not wish and source.random() < 0.2):
                return text
            wish = wish or (source.choice(wishes) if source.random() < 0.3 else b"")
            bits = allowed_bits(grammar, self._size)
            likely = self._by_start.get(wish[:1], ()) if wish else ()
            starts = [item for item in likely if bits[item] and wish.startswith(self._texts[item])]
            token = source.choice(starts) if starts else self._random(source, bits, text)
            wish = wish[len(self._texts[token]) :] if starts else b""
            assert grammar.accept(token)
            text += self._texts[token]
        return None

    def _random(self, source: random.Random, bits: numpy.ndarray[Any, Any], text: bytes) -> int:
        allowed = bits.nonzero()[0]
        assert len(allowed), f"no way on after {text!r}"
        closing = [item for item in self._closing if bits[item]]
        return source.choice(closing) if closing and source.random() < 0.4 else int(source.choice(allowed))

    def random_outputs(self, count: int, wishes: Sequence[bytes] = (), max_tokens: int = 300) -> Iterator[bytes]:
        """Return the complete ones of ``count`` random outputs of at most ``max_tokens`` tokens.

        ``wishes``: texts that are written where possible.
        """
        outputs = (
            self.steer(seed, wishes, max_tokens) if wishes else self.sample(seed, max_tokens) for seed in range(count)
        )
        return (text for text in outputs if text is not None)


@cache
def _mask(size: int) -> tuple[torch.Tensor, numpy.ndarray[Any, Any]]:
    """Return a mask of two rows for ``size`` tokens, and the bytes of its second row."""
    mask = torch.empty((2, -(-size // 32)), dtype=torch.int32)
    return mask, mask[1].numpy().view(numpy.uint8)


def allowed_bits(grammar: Grammar, size: int = VOCABULARY.size) -> numpy.ndarray[Any, Any]:
    """Return 1 for each token of a vocabulary of ``size`` tokens that is allowed next, 0 for others."""
    mask, octets = _mask(size)
    octets.fill(255)
    grammar.fill(mask, 1)
    return numpy.unpackbits(octets, bitorder="little")


def allowed_tokens(grammar: Grammar, size: int = VOCABULARY.size) -> list[int]:
    """Return the allowed next tokens of a vocabulary of ``size`` tokens."""
    result: list[int] = allowed_bits(grammar, size).nonzero()[0].tolist()
    return result


class Backend:
    """A grammar backend that compiles in one instance and loads the compiled form in another."""

    def __init__(self, name: str, special: Sequence[str] = (), **settings: Any) -> None:
        pieces = [*PIECES, *[b""] * len(special)]
        self._vocabulary = Vocabulary(pieces, (0,), special={item: len(PIECES) + at for at, item in enumerate(special)})
        component = Plugins.discover().get("grammar", name)
        chosen = type(component.settings())(**settings)
        build = component.load(GrammarBackend)
        self.name = name
        self.backend, self._other = build(self._vocabulary, chosen), build(self._vocabulary, chosen)

    def __call__(self, kind: Any, source: Any = "") -> Compiled:
        """Compile a constraint, which must not be refused."""
        constraint = Constraint(kind, source if isinstance(source, str) else json.dumps(source))
        assert self.backend.refuses(constraint) is None
        return Compiled(self._other.load(constraint, self.backend.compile(constraint)), self._vocabulary)

    def refusal(self, kind: Any, source: Any = "") -> str:
        """Return the reason of a refusal; empty if there is none."""
        return self.backend.refuses(Constraint(kind, source if isinstance(source, str) else json.dumps(source))) or ""


@cache
def backend_with(name: str, special: tuple[str, ...] = (), **settings: Any) -> Backend:
    if component := Plugins.discover().get("grammar", name).spec.needs:
        pytest.importorskip(component[0])
    return Backend(name, special, **settings)


@pytest.fixture
def grammar_backends() -> Callable[..., Backend]:
    """``grammar_backends(name, special, **settings)``; ``special``: names of special tokens."""
    return backend_with
