"""The grammar backends in their two places: this process, which loads, and another, which compiles."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import cached_property, partial
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


class GrammarSources:
    """What all compilers of an engine share. Each part is made when it is first asked for, and then kept."""

    def __init__(self, resolved: Resolved) -> None:
        self._resolved = resolved

    @cached_property
    def setup(self) -> Setup:
        """What a compiling process is told. Raises ``ConfigError``."""
        config, vocabulary = self._resolved.config, self._vocabulary
        return Setup(
            plugins=config.plugins,
            backends=self._resolved.grammar_order,
            pieces=list(vocabulary.pieces),
            stop_ids=vocabulary.stop_ids,
            special=dict(vocabulary.special),
            memory=MEMORY,
            timeout=config.backends.grammar_timeout,
        )

    @cached_property
    def backends(self) -> GrammarBackend:
        """The backends of this process, which load what is compiled. Raises ``ConfigError``."""
        return GrammarBackends(self._resolved.grammars, self._resolved.grammar_order, self._vocabulary)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        resolved = self._resolved
        return read_vocabulary(_tokenizer(resolved), resolved.vocab_size, resolved.eos_token_ids)


class BackendCompiler:
    """Compiles with the chosen backends, for the vocabulary of the chosen tokenizer, in a process of its own."""

    def __init__(self, sources: GrammarSources) -> None:
        self._sources = sources
        self._process: GrammarProcess | None = None
        self._closed = False

    def start(self) -> GrammarBackend:
        """Build the first backend there and, unless that has been done, here. Raises ``ConfigError``."""
        started = time.perf_counter()
        setup = self._sources.setup
        self._process = GrammarProcess(setup)
        if self._closed:  # in the meantime, by another thread
            raise ConfigError("the engine is closing")
        self._process.start()
        backends = self._sources.backends
        self._process.wait_ready()
        names = ", ".join(setup.backends)
        logger.info("A compiler of grammars is ready (%s, %.1f s)", names, time.perf_counter() - started)
        return backends

    def helper(self) -> Compiler:
        """One more process. The backends of this one load what it compiles."""
        return BackendCompiler(self._sources)

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
