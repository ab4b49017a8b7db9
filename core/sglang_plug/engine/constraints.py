"""Requests that wait for their grammar, and the grammars that are remembered.

The loop holds a constrained sequence here until its grammar has been compiled. A thread asks a compiling process for
one grammar after the other; while one takes long and others wait, further threads with processes of their own help.
Nothing here makes the loop wait.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from sglang_plug.grammar import CONSTRAINT_KINDS, Constraint, ConstraintError, ConstraintKind, Grammar, GrammarBackend
from sglang_plug.request import RequestError

from .cutting import Cutter
from .preamble import AfterPreamble, Ends
from .sequence import Sequence

logger = logging.getLogger(__name__)

CACHE_BYTES = 256 << 20
"""Compiled grammars, and refusals, that are remembered."""
MOST_WAITING = 256
"""Different constraints that may wait for the compiler."""
MOST_CHARACTERS = 1 << 20
"""Longest constraint."""
WORKERS = 3
"""Most constraints that are compiled at once."""
LONG = 0.5
"""Seconds that a constraint waits behind others before one more helper is started: that takes seconds and memory."""
IDLE = 60.0
"""Seconds after which a helper that has nothing to do ends."""
CLOSE_TIMEOUT = 5.0
"""Seconds to wait for a thread in the end."""
ENTRY_BYTES = 1024
"""What remembering anything takes besides its text."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A grammar that outputs can follow."""

    make: Callable[[], Grammar]
    """The grammar of one output."""
    cutter: Cutter
    ends: Ends
    """Both of its backend's vocabulary."""

    def begin(self, sequence: Sequence) -> None:
        """Give ``sequence`` a grammar of its own."""
        request, grammar = sequence.request, self.make()
        if request.preamble is not None:
            grammar = AfterPreamble(grammar, request.preamble, self.ends, request.params.stop_token_ids)
        sequence.grammar, sequence.cutter = grammar, self.cutter


Result = Loaded | RequestError | None
"""``None``: given up, because nobody waited any more."""


class Compiler(Protocol):
    """Compiles constraints elsewhere; used by one thread."""

    def start(self) -> GrammarBackend:
        """Get ready; returns the backend that loads what is compiled. Raises ``ConfigError`` if it cannot."""

    def helper(self) -> Compiler:
        """One more, for another thread, whose backend is this one's. This one has started."""

    def compile(self, constraint: Constraint, is_wanted: Callable[[], bool]) -> bytes:
        """Raises ``ConstraintError``. May give up once ``is_wanted`` says no."""

    def interrupt(self) -> None:
        """Make the thread give up what it does; called from another one."""

    def close(self) -> None:
        """Free what is held; the last call."""


@dataclass(frozen=True, slots=True)
class _Worker:
    compiler: Compiler
    thread: threading.Thread
    ready: threading.Event = field(default_factory=threading.Event)


class _NotStarted(Exception):
    """A compiler could not get ready."""


class Constraints:
    """Holds sequences until their grammars are there. Used by the loop's thread only.

    Args:
        compiler: what compiles, or the reason why constrained requests cannot be served.
        forms: kinds of constraints that it can enforce at all.
        cache_bytes: most bytes of compiled grammars that are remembered.
    """

    def __init__(
        self,
        compiler: Compiler | str,
        *,
        forms: Container[ConstraintKind] = CONSTRAINT_KINDS,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._forms = forms
        self._refusal = compiler if isinstance(compiler, str) else None
        self._cache = _Cache(cache_bytes)
        self._waiting: dict[Constraint, list[Sequence]] = {}
        self._asked = set[Constraint]()
        self._taken = 0.0
        self._ready: list[tuple[Sequence, RequestError | None]] = []
        self._jobs: queue.SimpleQueue[Constraint | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Constraint, Result, int]] = queue.SimpleQueue()
        self._closing = False
        self._loading = threading.Lock()
        self._workers: list[_Worker] = []
        if not isinstance(compiler, str):
            self._work(compiler, self._serve_first)

    def __len__(self) -> int:
        """Sequences held."""
        return sum(map(len, self._waiting.values())) + len(self._ready)

    def hold(self, sequence: Sequence) -> None:
        """Keep a constrained sequence until ``release`` returns it. Raises ``RequestError`` if it cannot be served."""
        constraint = sequence.request.constraint
        assert constraint is not None
        if self._refusal is not None:
            raise RequestError(self._refusal, about="constraint")
        if constraint.kind not in self._forms:
            raise RequestError(f"{constraint.kind}: the grammar backend cannot enforce this kind", about="constraint")
        if len(constraint.source) > MOST_CHARACTERS:
            raise RequestError(
                f"{constraint.kind}: at most {MOST_CHARACTERS} characters are allowed", about="constraint"
            )
        found = self._cache.get(constraint)
        if found is not None:
            self._ready.append(_begin(sequence, found))
            return
        if constraint not in self._waiting and len(self._waiting) >= MOST_WAITING:
            raise RequestError(f"{MOST_WAITING} grammars wait for the compiler; try again later", 503)
        self._waiting.setdefault(constraint, []).append(sequence)
        self._ask(constraint)

    def release(self) -> Iterator[tuple[Sequence, RequestError | None]]:
        """Sequences whose grammar has come, now in ``sequence.grammar``, or the reason why it never will."""
        while not self._done.empty():
            constraint, result, size = self._done.get()
            self._asked.discard(constraint)
            if result is None:
                if constraint in self._waiting:  # somebody came while it was given up
                    self._ask(constraint)
                continue
            if size:
                self._cache.put(constraint, result, size)
            self._ready += [_begin(sequence, result) for sequence in self._waiting.pop(constraint, [])]
        if not self._jobs.empty() and time.monotonic() - self._taken > LONG:
            self._help()
        ready, self._ready = self._ready, []
        yield from ready

    def abort(self, id: str) -> bool:
        """Drop a held sequence; False if there is none."""
        for constraint, sequences in self._waiting.items():
            for sequence in sequences:
                if sequence.request.id == id:
                    sequences.remove(sequence)
                    if not sequences:
                        del self._waiting[constraint]
                    return True
        held = len(self._ready)
        self._ready = [one for one in self._ready if one[0].request.id != id]
        return len(self._ready) < held

    def close(self) -> None:
        """End the compiling processes."""
        self._closing = True
        self._waiting.clear()
        for worker in self._workers:
            self._jobs.put(None)
            worker.compiler.interrupt()
        for worker in self._workers:
            worker.thread.join(CLOSE_TIMEOUT)

    def _ask(self, constraint: Constraint) -> None:
        if constraint not in self._asked:
            if self._jobs.empty():
                self._taken = time.monotonic()  # nothing has waited so far
            self._asked.add(constraint)
            self._jobs.put(constraint)

    def _help(self) -> None:
        """One more thread, if there may be one and the last one has started."""
        self._workers = [one for one in self._workers if one.thread.is_alive()]
        if 0 < len(self._workers) < WORKERS and all(one.ready.is_set() for one in self._workers):
            logger.info("Constraints wait for one that takes long to compile: starting one more process")
            self._work(self._workers[0].compiler.helper(), self._serve_too)

    def _work(self, compiler: Compiler, serve: Callable[[_Worker], None]) -> None:
        def work() -> None:
            try:
                serve(worker)
            finally:
                compiler.close()

        worker = _Worker(compiler, threading.Thread(target=work, name="grammars", daemon=True))
        self._workers.append(worker)
        worker.thread.start()

    # -- in the threads -------------------------------------------------------------------------------------------

    def _serve_first(self, worker: _Worker) -> None:
        """Serves as long as the engine does; without it there are no constraints."""
        try:
            self._serve(worker, None)
        except _NotStarted as error:
            self._refusal = f"structured outputs are not available: {error}"
            if not self._closing:
                logger.warning("%s", self._refusal)
            while (job := self._jobs.get()) is not None:
                self._done.put((job, RequestError(self._refusal, about="constraint"), 0))

    def _serve_too(self, worker: _Worker) -> None:
        try:
            self._serve(worker, IDLE)
        except _NotStarted as error:
            if not self._closing:
                logger.warning("no further process to compile grammars: %s", error)
        except queue.Empty:
            pass

    def _serve(self, worker: _Worker, idle: float | None) -> None:
        """Compile one constraint after the other. Raises ``queue.Empty`` when none has come for ``idle`` seconds."""
        compiler = worker.compiler
        try:
            backend = compiler.start()
            loaded = partial(Loaded, cutter=Cutter(backend.vocabulary), ends=Ends(backend.vocabulary))
        except Exception as error:
            raise _NotStarted(str(error)) from error
        worker.ready.set()
        while (job := self._jobs.get(timeout=idle)) is not None:
            self._taken = time.monotonic()
            self._done.put((job, *self._compile(compiler, backend, loaded, job)))

    def _compile(
        self, compiler: Compiler, backend: GrammarBackend, loaded: Callable[..., Loaded], constraint: Constraint
    ) -> tuple[Result, int]:
        """What came of it, and the bytes that remembering it takes; 0: not to be remembered."""

        def is_wanted() -> bool:
            return constraint in self._waiting

        if not is_wanted():
            return None, 0
        overhead = len(constraint.source) + ENTRY_BYTES
        try:
            compiled = compiler.compile(constraint, is_wanted)
            with self._loading:
                return loaded(backend.load(constraint, compiled)), len(compiled) + overhead
        except ConstraintError as error:
            if not is_wanted():
                return None, 0
            return RequestError(f"{constraint.kind}: {error}", about="constraint"), overhead if error.lasting else 0
        except Exception as error:
            logger.exception("a grammar could not be made")
            return RequestError(f"{constraint.kind}: {type(error).__name__}: {error}", 500), 0


def _begin(sequence: Sequence, found: Loaded | RequestError) -> tuple[Sequence, RequestError | None]:
    if isinstance(found, RequestError):
        return sequence, found
    try:
        found.begin(sequence)
    except Exception as error:
        logger.exception("a grammar could not be started")
        return sequence, RequestError(f"the grammar failed: {type(error).__name__}: {error}", 500)
    return sequence, None


class _Cache:
    """The most recently used results, up to a number of bytes."""

    def __init__(self, most: int) -> None:
        self._most, self._total = most, 0
        self._entries: OrderedDict[Constraint, tuple[Loaded | RequestError, int]] = OrderedDict()

    def get(self, constraint: Constraint) -> Loaded | RequestError | None:
        if constraint not in self._entries:
            return None
        self._entries.move_to_end(constraint)
        return self._entries[constraint][0]

    def put(self, constraint: Constraint, result: Loaded | RequestError, size: int) -> None:
        if constraint in self._entries:
            self._total -= self._entries.pop(constraint)[1]
        if size > self._most:
            return
        self._entries[constraint] = result, size
        self._total += size
        while self._total > self._most:
            self._total -= self._entries.popitem(last=False)[1][1]
