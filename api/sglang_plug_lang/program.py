"""Programs made of Python functions with ``@function``."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, overload

from .backends.base import Backend, CachesPrefixes
from .default import backend_or_default, global_config
from .errors import LanguageError
from .execution.interpreter import Interpreter
from .execution.tracing import (
    Argument,
    PrefixEnd,
    Trace,
    TracingBackend,
    TracingInterpreter,
    current_tracing,
    tracing,
)
from .ir import OPTION_NAMES, SAMPLING_NAMES, GenerationOptions
from .state import ProgramState
from .templates import template_named

MAX_THREADS = 64
"""Maximum number of concurrent programs with ``num_threads="auto"``; they mostly wait for the server."""
ALIASES: Mapping[str, str] = {alias: name for name, alias in SAMPLING_NAMES.items()}

Arguments = Mapping[str, Any] | Sequence[Any]
"""Arguments of one run of a batch: by name, or in order."""


class Function:
    """A program, which is called, or started with ``run`` or ``run_batch``.

    Callers give its parameters after the first; further keyword arguments are generation options that apply to every
    ``gen`` without that option (``temperature=0``). A parameter takes precedence over an option of the same name.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        bound: Mapping[str, Any] | None = None,
        num_api_spec_tokens: int | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        if num_api_spec_tokens is not None and num_api_spec_tokens < 1:
            raise ValueError(f"num_api_spec_tokens must be at least 1, got {num_api_spec_tokens}")
        self.func, self.num_api_spec_tokens = function, num_api_spec_tokens
        self._bound = dict(bound or {})
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters:
            raise TypeError(f"{function.__name__} needs a first parameter, the state")
        self._parameters = frozenset(
            item.name for item in parameters[1:] if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)
        )

    def __call__(self, *arguments: Any, **keywords: Any) -> ProgramState:
        """Run the program, see ``run``; while another program is traced, trace it."""
        tracer = current_tracing()
        if tracer is None:
            return self.run(*arguments, **keywords)
        return self._traced(tracer.child(), arguments, self._split(keywords)[0])

    def bind(self, **keywords: Any) -> Function:
        """Return the same program with some arguments fixed."""
        unknown = sorted(set(keywords) - self._parameters)
        if unknown:
            raise TypeError(f"{self.func.__name__} has no parameter {unknown[0]!r}")
        return Function(self.func, {**self._bound, **keywords}, self.num_api_spec_tokens)

    def run(self, *arguments: Any, backend: Any = None, stream: bool = False, **keywords: Any) -> ProgramState:
        """Run the program and return its state, whose last generations may still be running.

        Args:
            backend: backend to use instead of the one of ``set_default_backend``.
            stream: return at once and run in the background, for ``state.text_iter()``.

        Raises the program's own errors; a backend's errors are kept in the state.
        """
        arguments_by_name, options = self._split(keywords)
        interpreter = Interpreter(backend_or_default(backend), options, stream, self.num_api_spec_tokens)
        state = ProgramState(interpreter)
        program = functools.partial(self.func, state, *arguments, **{**self._bound, **arguments_by_name})
        if not stream:
            _run(program, state)
            return state
        state.interpreter.announce_program()
        threading.Thread(target=_run_in_background, args=(program, state), name="program", daemon=True).start()
        return state

    def run_batch(
        self,
        batch: Sequence[Arguments],
        *,
        backend: Any = None,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        **options: Any,
    ) -> Any:
        """Run the program for each entry of ``batch``, several at a time; return the states in the same order.

        Args:
            batch: entries, each a dictionary of arguments or a list of them in order.
            num_threads: number of concurrent programs.
            progress_bar: show the progress on stderr.
            generator_style: return an iterator, which yields each state when it and all before it are done.
        """
        chosen = backend_or_default(backend)
        threads = min(MAX_THREADS, len(batch)) if num_threads == "auto" else num_threads
        if batch and threads < 1:
            raise ValueError(f"num_threads must be 'auto' or at least 1, got {num_threads}")

        def run_one(arguments: Arguments) -> ProgramState:
            if isinstance(arguments, Mapping):
                state = self.run(backend=chosen, **{**options, **arguments})
            else:
                state = self.run(*arguments, backend=chosen, **options)
            state.sync()
            return state

        states = _in_order(run_one, batch, max(1, threads), progress_bar)
        return states if generator_style else list(states)

    def trace(self, *, backend: Any = None, **arguments: Any) -> Trace:
        """Return what the program appends, without running it; arguments that are not given are placeholders.

        Raises ``TypeError`` if the program formats a placeholder, or decides by it.
        """
        tracer = TracingInterpreter(_tracing_backend(backend))
        self._traced(tracer, (), self._with_placeholders(arguments))
        return tracer.trace()

    def cache(self, backend: Any = None) -> str:
        """Fill the backend's prefix cache with the constant beginning of the program, and return that text.

        Backends without a method ``cache_prefix`` do nothing.
        """
        chosen = backend_or_default(backend)
        prefix = self.prefix(chosen)
        if prefix and isinstance(chosen, CachesPrefixes):
            chosen.cache_prefix(prefix)
        return prefix

    def prefix(self, backend: Any = None) -> str:
        """Return the constant beginning of the program, rendered with the backend's chat template. Nothing is sent."""
        tracer = TracingInterpreter(_tracing_backend(backend), only_prefix=True)
        with contextlib.suppress(PrefixEnd, TypeError, AttributeError):  # the program may use placeholders in any way
            self._traced(tracer, (), self._with_placeholders({}))
        return tracer.prefix()

    def _with_placeholders(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        bound = {**self._bound, **arguments}
        return {**bound, **{name: Argument(name) for name in self._parameters - bound.keys()}}

    def _traced(
        self, tracer: TracingInterpreter, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> ProgramState:
        state = ProgramState(tracer)
        with tracing(tracer):
            state.ret_value = self.func(state, *arguments, **{**self._bound, **keywords})
        return state

    def _split(self, keywords: Mapping[str, Any]) -> tuple[dict[str, Any], GenerationOptions]:
        """Split keyword arguments into arguments of the function and generation options."""
        arguments, options = {}, {}
        for name, value in keywords.items():
            option = ALIASES.get(name, name)
            if name not in self._parameters and option in OPTION_NAMES:
                options[option] = value
            else:
                arguments[name] = value
        return arguments, GenerationOptions(**options)


@overload
def function(program: Callable[..., Any], num_api_spec_tokens: int | None = None) -> Function: ...
@overload
def function(
    program: None = None, num_api_spec_tokens: int | None = None
) -> Callable[[Callable[..., Any]], Function]: ...
def function(
    program: Callable[..., Any] | None = None, num_api_spec_tokens: int | None = None
) -> Function | Callable[[Callable[..., Any]], Function]:
    """Make a program of a Python function, whose first parameter is the state: ``@function``.

    Args:
        num_api_spec_tokens: tokens of a request that serves several ``gen`` with stop strings, as long as the text that
            the program appends between them is what the model generated there.
    """
    if program is None:
        return functools.partial(Function, num_api_spec_tokens=num_api_spec_tokens)
    return Function(program, num_api_spec_tokens=num_api_spec_tokens)


def _tracing_backend(backend: Any) -> Backend:
    """Return the backend whose chat template a trace uses; one without a model if there is none."""
    if backend is not None or global_config.default_backend is not None:
        return backend_or_default(backend)
    return TracingBackend(template_named("default"))


def _run(program: Callable[[], Any], state: ProgramState) -> None:
    state.interpreter.begin_program()
    try:
        state.ret_value = program()
    except LanguageError as error:
        state.interpreter.fail(error)
    finally:
        state.interpreter.end_program()


def _run_in_background(program: Callable[[], Any], state: ProgramState) -> None:
    try:
        state.interpreter.begin_program()
        state.ret_value = program()
    except BaseException as error:
        state.interpreter.fail(error)
    finally:
        state.interpreter.end_program()


def _in_order(
    run: Callable[[Arguments], ProgramState], batch: Sequence[Arguments], threads: int, show: bool
) -> Iterator[ProgramState]:
    done = 0
    lock = threading.Lock()

    def count(_: Future[ProgramState]) -> None:
        nonlocal done
        with lock:
            done += 1
            sys.stderr.write(f"\r{done}/{len(batch)} done" + ("\n" if done == len(batch) else ""))
            sys.stderr.flush()

    with ThreadPoolExecutor(threads, thread_name_prefix="batch") as pool:
        futures = [pool.submit(run, arguments) for arguments in batch]
        try:
            for future in futures if show else ():
                future.add_done_callback(count)
            for future in futures:
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
