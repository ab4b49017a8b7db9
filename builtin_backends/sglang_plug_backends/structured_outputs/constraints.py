"""Requests that wait for their grammar, and the cache of compiled grammars.

A constrained sequence is held here until its grammar has been compiled. A thread lets a compiling process
compile one grammar after the other; if others wait for long, further threads with processes of their own help.
No call here makes the engine wait.
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
from typing import Protocol, get_args

from sglang_plug import (
    EXIT_EXCEPTIONS,
    Constraint,
    ConstraintError,
    ConstraintKind,
    Grammar,
    GrammarBackend,
    Request,
    RequestError,
    SequenceView,
)

from .forced_tokens import ForcedTokenizer
from .grammar_process import CompilerUnavailable
from .grammar_queue import GrammarQueue
from .grammar_state import GrammarState
from .reasoning_prefix import DeferredConstraint, EndMarkers

logger = logging.getLogger(__name__)

ALL_KINDS: tuple[ConstraintKind, ...] = get_args(ConstraintKind)
CLOSE_TIMEOUT = 5.0
"""Seconds to wait for a thread when closing."""
STACK = 16 << 20
"""Stack bytes of a thread that loads grammars: twice the stack that compiling them can use."""
ENTRY_BYTES = 1024
"""Bytes of a cache entry besides its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerLimits:
    """Limits of the queue and the cache of constraints, and of the helpers that compile them."""

    cache_bytes: int = 256 << 20
    """Largest total size of compiled grammars and refusals in the cache."""
    max_waiting: int = 256
    """Largest number of different constraints that wait for the compiler."""
    max_characters: int = 1 << 20
    """Length of the longest constraint, in characters."""
    workers: int = 3
    """Largest number of constraints that are compiled at once."""
    long_wait: float = 0.5
    """Seconds that a constraint is queued before another helper is started, which takes seconds and memory."""
    idle: float = 60.0
    """Seconds after which an idle helper ends."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A grammar that outputs can follow."""

    make: Callable[[], Grammar]
    """Makes the grammar of one output."""
    forced_tokenizer: ForcedTokenizer
    end_markers: EndMarkers
    """The ends of reasoning prefixes in the backend's vocabulary, as for ``forced_tokenizer``."""

    def begin(self, request: Request) -> GrammarState:
        """Return a grammar for the output of ``request`` alone."""
        grammar = self.make()
        if request.reasoning_prefix is not None:
            grammar = DeferredConstraint(
                grammar, request.reasoning_prefix, self.end_markers, request.params.stop_token_ids
            )
        return GrammarState(grammar, self.forced_tokenizer)


Result = Loaded | RequestError | None
"""The outcome of compiling; ``None``: given up, because no request waited for it any more."""


class Compiler(Protocol):
    """Compiles constraints elsewhere; used by one thread."""

    def start(self) -> GrammarBackend:
        """Get ready; return the backend that loads compiled grammars.

        Raises ``ConfigError`` if it cannot be used at all, ``CompilerUnavailable`` if a helper cannot be started now.
        """

    def helper(self) -> Compiler:
        """Make another compiler for another thread, with this one's backend. This one must have started."""

    def compile(self, constraint: Constraint, is_wanted: Callable[[], bool]) -> bytes:
        """Compile a constraint; may give up once ``is_wanted`` returns False.

        Raises ``ConstraintError`` and ``CompilerUnavailable``.
        """

    def interrupt(self) -> None:
        """Make the compiler's thread abandon its work; called from another thread."""

    def close(self) -> None:
        """Free all resources; this is the last call."""


@dataclass(frozen=True, slots=True)
class _Worker:
    compiler: Compiler
    thread: threading.Thread
    ready: threading.Event = field(default_factory=threading.Event)


class _NotStarted(Exception):
    """Raised if a compiler could not get ready."""


class Constraints:
    """Holds sequences until their grammars are compiled. Used by the engine's thread only.

    Args:
        compiler: compiles them once ``start`` is called.
        forms: kinds of constraints that it can enforce.
        limits: of the queue, the cache and the helpers.
        clock: the time in seconds, used to decide when to start helpers.
        start_delay: seconds after ``start`` when the compiler is started, unless a constraint arrives earlier.
    """

    def __init__(
        self,
        compiler: Compiler,
        *,
        forms: Container[ConstraintKind] = ALL_KINDS,
        limits: CompilerLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        start_delay: float = 0.0,
    ) -> None:
        self._forms, self._start_delay = forms, start_delay
        self._compiler, self._limits = compiler, limits or CompilerLimits()
        self._refusal: str | None = None
        self._cache = _Cache(self._limits.cache_bytes)
        self._waiting: dict[Constraint, list[SequenceView]] = {}
        self._requested = set[Constraint]()
        self._ready: list[tuple[SequenceView, GrammarState | RequestError]] = []
        self._jobs = GrammarQueue(clock)
        self._done: queue.SimpleQueue[tuple[Constraint, Result, int]] = queue.SimpleQueue()
        self._closing = False
        self._loading = threading.Lock()
        self._workers: list[_Worker] = []

    def __len__(self) -> int:
        """Return the number of held sequences."""
        return sum(map(len, self._waiting.values())) + len(self._ready)

    def start(self) -> None:
        """Begin to compile; called once."""
        self._work(self._compiler, self._serve_first)

    def hold(self, sequence: SequenceView) -> None:
        """Keep a constrained sequence until ``release`` returns it. Raises ``RequestError`` if it cannot be served."""
        constraint = sequence.request.constraint
        assert constraint is not None
        if self._refusal is not None:
            raise RequestError(self._refusal, about="constraint")
        if constraint.kind not in self._forms:
            raise RequestError(f"{constraint.kind}: the grammar backend cannot enforce this kind", about="constraint")
        limits = self._limits
        if len(constraint.source) > limits.max_characters:
            raise RequestError(
                f"{constraint.kind}: at most {limits.max_characters} characters are allowed", about="constraint"
            )
        cached = self._cache.get(constraint)
        if cached is not None:
            self._ready.append(_begin(sequence, cached))
            return
        if constraint not in self._waiting and len(self._waiting) >= limits.max_waiting:
            raise RequestError(f"{limits.max_waiting} grammars wait for the compiler; try again later", 503)
        self._waiting.setdefault(constraint, []).append(sequence)
        self._enqueue(constraint)

    def release(self) -> Iterator[tuple[SequenceView, GrammarState | RequestError]]:
        """Yield the sequences whose grammars are compiled, with their grammars or the errors."""
        while not self._done.empty():
            constraint, result, size = self._done.get()
            self._requested.discard(constraint)
            if result is None:
                if constraint in self._waiting:  # a request arrived while it was given up
                    self._enqueue(constraint)
                continue
            if size:
                self._cache.put(constraint, result, size)
            self._ready += [_begin(sequence, result) for sequence in self._waiting.pop(constraint, [])]
        if self._jobs.longest_wait() > self._limits.long_wait:
            self._help()
        ready, self._ready = self._ready, []
        yield from ready

    def abort(self, id: str) -> bool:
        """Drop a held sequence; return False if there is none."""
        for constraint, sequences in self._waiting.items():
            for sequence in sequences:
                if sequence.request.id == id:
                    sequences.remove(sequence)
                    if not sequences:
                        self._forget(constraint)
                    return True
        held = len(self._ready)
        self._ready = [item for item in self._ready if item[0].request.id != id]
        return len(self._ready) < held

    def close(self) -> None:
        """End the compiling processes."""
        self._closing = True
        self._waiting.clear()
        self._jobs.close()
        for worker in self._workers:
            worker.compiler.interrupt()
        for worker in self._workers:
            worker.thread.join(CLOSE_TIMEOUT)

    def _enqueue(self, constraint: Constraint) -> None:
        if constraint not in self._requested:
            self._requested.add(constraint)
            self._jobs.put(constraint)

    def _forget(self, constraint: Constraint) -> None:
        """Remove a constraint that no sequence waits for any more from the queue."""
        del self._waiting[constraint]
        if self._jobs.discard(constraint):
            self._requested.discard(constraint)

    def _help(self) -> None:
        """Start another thread, if the limit allows it and all others have started."""
        self._workers = [worker for worker in self._workers if worker.thread.is_alive()]
        if 0 < len(self._workers) < self._limits.workers and all(worker.ready.is_set() for worker in self._workers):
            logger.info("Constraints wait to be compiled: starting one more process")
            self._work(self._workers[0].compiler.helper(), self._serve_too)

    def _work(self, compiler: Compiler, serve: Callable[[_Worker], None]) -> None:
        def work() -> None:
            try:
                serve(worker)
            finally:
                compiler.close()

        worker = _Worker(compiler, threading.Thread(target=work, name="grammars", daemon=True))
        self._workers.append(worker)
        before = threading.stack_size(STACK)
        try:
            worker.thread.start()
        finally:
            threading.stack_size(before)

    # -- in the threads -------------------------------------------------------------------------------------------

    def _serve_first(self, worker: _Worker) -> None:
        """Serve as long as the engine runs; if this first compiler cannot start, refuse all constraints."""
        self._jobs.wait(self._start_delay)
        try:
            if not self._closing:
                self._serve(worker, None)
        except _NotStarted as error:
            self._refusal = f"structured outputs are not available: {error}"
            if not self._closing:
                logger.warning("%s", self._refusal)
            while (job := self._jobs.take()) is not None:
                self._done.put((job, RequestError(self._refusal, about="constraint"), 0))

    def _serve_too(self, worker: _Worker) -> None:
        try:
            self._serve(worker, self._limits.idle)
        except _NotStarted as error:
            if not self._closing:
                logger.warning("no further process to compile grammars: %s", error)
        except queue.Empty:
            pass

    def _serve(self, worker: _Worker, idle: float | None) -> None:
        """Compile one constraint after the other. Raises ``queue.Empty`` after ``idle`` seconds without one."""
        compiler = worker.compiler
        try:
            backend = compiler.start()
            loaded = partial(
                Loaded, forced_tokenizer=ForcedTokenizer(backend.vocabulary), end_markers=EndMarkers(backend.vocabulary)
            )
        except EXIT_EXCEPTIONS:
            raise
        except BaseException as error:
            raise _NotStarted(str(error)) from error
        worker.ready.set()
        while (job := self._jobs.take(idle)) is not None:
            try:
                self._done.put((job, *self._compile(compiler, backend, loaded, job)))
            except CompilerUnavailable as error:
                if idle is not None:
                    self._jobs.put(job)  # for the other threads
                    raise _NotStarted(str(error)) from error
                self._done.put((job, RequestError(f"{error}; try again later", 503), 0))

    def _compile(
        self, compiler: Compiler, backend: GrammarBackend, loaded: Callable[..., Loaded], constraint: Constraint
    ) -> tuple[Result, int]:
        """Return the outcome, and its bytes in the cache; 0: it is not cached.

        Raises ``CompilerUnavailable``.
        """

        def is_wanted() -> bool:
            return constraint in self._waiting

        if not is_wanted():
            return None, 0
        overhead = len(constraint.source) + ENTRY_BYTES
        try:
            compiled = compiler.compile(constraint, is_wanted)
            with self._loading:
                return loaded(backend.load(constraint, compiled)), backend.memory(compiled) + overhead
        except CompilerUnavailable:
            raise
        except ConstraintError as error:
            if not is_wanted():
                return None, 0
            return RequestError(f"{constraint.kind}: {error}", about="constraint"), overhead if error.lasting else 0
        except EXIT_EXCEPTIONS:
            raise
        except BaseException as error:
            logger.exception("a grammar could not be made")
            return RequestError(f"{constraint.kind}: {type(error).__name__}: {error}", 500, about="constraint"), 0


def _begin(sequence: SequenceView, result: Loaded | RequestError) -> tuple[SequenceView, GrammarState | RequestError]:
    if isinstance(result, RequestError):
        return sequence, result
    try:
        return sequence, result.begin(sequence.request)
    except EXIT_EXCEPTIONS:
        raise
    except BaseException as error:
        logger.exception("a grammar could not be started")
        return sequence, RequestError(f"the grammar failed: {type(error).__name__}: {error}", 500)


class _Cache:
    """A cache of the most recently used results, up to a number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._total = max_bytes, 0
        self._entries: OrderedDict[Constraint, tuple[Loaded | RequestError, int]] = OrderedDict()

    def get(self, constraint: Constraint) -> Loaded | RequestError | None:
        if constraint not in self._entries:
            return None
        self._entries.move_to_end(constraint)
        return self._entries[constraint][0]

    def put(self, constraint: Constraint, result: Loaded | RequestError, size: int) -> None:
        if constraint in self._entries:
            self._total -= self._entries.pop(constraint)[1]
        if size > self._max_bytes:
            return
        self._entries[constraint] = result, size
        self._total += size
        while self._total > self._max_bytes:
            self._total -= self._entries.popitem(last=False)[1][1]
