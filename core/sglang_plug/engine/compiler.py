"""The grammar backends in their two places: this process, which loads, and another, which compiles."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sglang_plug.attribution import make
from sglang_plug.config import ConfigError
from sglang_plug.grammar import Constraint, GrammarBackend, Vocabulary
from sglang_plug.tokenizer import Tokenizer, TokenizerSource

from .constraints import Compiler
from .grammar_backends import GrammarBackends
from .grammar_process import GrammarProcess
from .grammar_worker import Setup
from .resolve import Resolved

logger = logging.getLogger(__name__)

MEMORY = 4 << 30
"""Bytes that compiling may take on top of what the process has once it is ready."""


class BackendCompiler:
    """Compiles with the chosen backends, for the vocabulary of the chosen tokenizer."""

    def __init__(self, resolved: Resolved) -> None:
        self._resolved: Resolved | None = resolved
        self._process: GrammarProcess | None = None
        self._setup: Setup | None = None
        self._backends: GrammarBackend | None = None
        self._closed = False

    def start(self) -> GrammarBackend:
        """Read the vocabulary and build the first backend here and there. Raises ``ConfigError``."""
        assert self._resolved is not None
        resolved, self._resolved = self._resolved, None
        started = time.perf_counter()
        vocabulary = read_vocabulary(_tokenizer(resolved), resolved.vocab_size, resolved.eos_token_ids)
        order = resolved.grammar_order
        self._setup = setup = Setup(
            plugins=resolved.config.plugins,
            backends=order,
            pieces=list(vocabulary.pieces),
            stop_ids=vocabulary.stop_ids,
            special=dict(vocabulary.special),
            memory=MEMORY,
            timeout=resolved.config.backends.grammar_timeout,
        )
        self._process = GrammarProcess(setup)
        if self._closed:  # in the meantime, by another thread
            raise ConfigError("the engine is closing")
        self._process.start()
        self._backends = backends = GrammarBackends(resolved.grammars, order, vocabulary)
        self._process.wait_ready()
        logger.info("Structured outputs are ready (%s, %.1f s)", ", ".join(order), time.perf_counter() - started)
        return backends

    def helper(self) -> Compiler:
        """One more process. The backends of this one load what it compiles."""
        assert self._setup is not None and self._backends is not None
        return _Helper(self._setup, self._backends)

    def compile(self, constraint: Constraint, is_wanted: Callable[[], bool]) -> bytes:
        """Raises ``ConstraintError``."""
        assert self._process is not None
        return self._process.compile(constraint, is_wanted)

    def interrupt(self) -> None:
        """Give up, whatever is being done."""
        self._closed = True
        if self._process is not None:
            self._process.interrupt()

    def close(self) -> None:
        """End the compiling process."""
        if self._process is not None:
            self._process.close()


class _Helper:
    """A further process of a ``BackendCompiler``."""

    def __init__(self, setup: Setup, backends: GrammarBackend) -> None:
        self._setup, self._backends = setup, backends
        self._process = GrammarProcess(setup)

    def start(self) -> GrammarBackend:
        self._process.start()
        self._process.wait_ready()
        return self._backends

    def helper(self) -> Compiler:
        return _Helper(self._setup, self._backends)

    def compile(self, constraint: Constraint, is_wanted: Callable[[], bool]) -> bytes:
        return self._process.compile(constraint, is_wanted)

    def interrupt(self) -> None:
        self._process.interrupt()

    def close(self) -> None:
        self._process.close()


def _tokenizer(resolved: Resolved) -> Tokenizer:
    path = Path(resolved.config.model.tokenizer_path or resolved.checkpoint.path)
    component = resolved.choices["tokenizer"].component
    tokenizer: Tokenizer = make(component, TokenizerSource(path=path), contract=Tokenizer)
    return tokenizer


def read_vocabulary(tokenizer: Tokenizer, size: int, stop_ids: tuple[int, ...]) -> Vocabulary:
    """What the ids of a model with ``size`` of them stand for; ids that the tokenizer lacks have no text."""
    special, known = tokenizer.special_token_ids, min(size, tokenizer.vocab_size)
    pieces = [b"" if token in special else tokenizer.piece_bytes(token) for token in range(known)]
    pieces += [b""] * (size - known)
    stops = tuple(dict.fromkeys((*stop_ids, *tokenizer.eos_token_ids)))
    names = {tokenizer.piece(token): token for token in sorted(special) if token < known}
    return Vocabulary(pieces, stops, names, partial(tokenizer.encode, special=False))
