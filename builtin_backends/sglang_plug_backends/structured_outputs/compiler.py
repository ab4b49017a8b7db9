"""The use of grammar backends in two processes: this one loads grammars, another one compiles them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import cached_property

from sglang_plug import Component, ConfigError, Constraint, EngineConfig, GrammarBackend, Vocabulary

from .constraints import Compiler
from .grammar_backends import GrammarBackends
from .grammar_process import CompilerUnavailable, GrammarProcess
from .grammar_worker import Setup

logger = logging.getLogger(__name__)

MEMORY = 4 << 30
"""Bytes that compiling may take in addition to the memory of the ready process."""


class GrammarSources:
    """The objects that all compilers of an engine share. Each is made on first use, and then kept.

    Args:
        config: the configuration of the engine.
        components: the backends that can be used here.
        order: names of the backends to try for a constraint that names none.
        vocabulary: reads the model's vocabulary. Raises ``ConfigError``.
    """

    def __init__(
        self,
        config: EngineConfig,
        components: Sequence[Component],
        order: tuple[str, ...],
        vocabulary: Callable[[], Vocabulary],
    ) -> None:
        self._config, self._components, self._order, self._vocabulary = config, components, order, vocabulary
        self.starting = threading.Lock()
        """Held while a compiling process starts."""

    @cached_property
    def setup(self) -> Setup:
        """The first message to a compiling process. Raises ``ConfigError``."""
        config, vocabulary = self._config, self._vocabulary()
        return Setup(
            plugins=config.plugins,
            backends=self._order,
            pieces=list(vocabulary.pieces),
            stop_ids=vocabulary.stop_ids,
            special=dict(vocabulary.special),
            memory=MEMORY,
            timeout=config.backends.grammar_timeout,
        )

    @cached_property
    def backends(self) -> GrammarBackend:
        """The backends of this process, which load compiled grammars. Raises ``ConfigError``."""
        return GrammarBackends(self._components, self._order, self._vocabulary())


MakeProcess = Callable[[Callable[[], Setup], threading.Lock], GrammarProcess]
"""Makes a compiling process from its first message and the lock that is held while one starts."""


class BackendCompiler:
    """Compiles with the chosen backends, for the vocabulary of the chosen tokenizer, in a process of its own.

    Args:
        sources: the objects shared with other compilers.
        helps: True if others can do its work when its process cannot be started.
        make_process: makes the process.
    """

    def __init__(
        self, sources: GrammarSources, *, helps: bool = False, make_process: MakeProcess = GrammarProcess
    ) -> None:
        self._sources, self._helps, self._make_process = sources, helps, make_process
        self._process = make_process(lambda: sources.setup, sources.starting)

    def start(self) -> GrammarBackend:
        """Build the first backend in the compiling process and, unless done already, in this one.

        Raises ``ConfigError``, and ``CompilerUnavailable`` if it ``helps``. Otherwise a process that cannot be started
        now is started when there is a constraint to compile.
        """
        started = time.perf_counter()
        setup = self._sources.setup
        if self._process.closed:  # closed by another thread in the meantime
            raise ConfigError("the engine is closing")
        self._process.start()
        backends = self._sources.backends
        try:
            self._process.wait_ready()
        except CompilerUnavailable as error:
            if self._helps:
                raise
            if not self._process.closed:
                logger.warning("%s; structured outputs have to wait", error)
            return backends
        names = ", ".join(setup.backends)
        logger.info("Grammar compiler process is ready (%s, %.1f s)", names, time.perf_counter() - started)
        return backends

    def helper(self) -> Compiler:
        """Make a compiler with another process; the backends of this one load the grammars that it compiles."""
        return BackendCompiler(self._sources, helps=True, make_process=self._make_process)

    def compile(self, constraint: Constraint, is_wanted: Callable[[], bool]) -> bytes:
        """Compile a constraint; see ``GrammarProcess.compile``. Raises ``ConstraintError``, ``CompilerUnavailable``."""
        return self._process.compile(constraint, is_wanted)

    def interrupt(self) -> None:
        """Abandon the current work."""
        self._process.interrupt()

    def close(self) -> None:
        """End the compiling process."""
        self._process.close()
