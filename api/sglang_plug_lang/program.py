"""``@function``: Python functions as programs."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

from .default import backend_or_default
from .errors import LanguageError
from .interpreter import Interpreter
from .ir import OPTION_NAMES, SAMPLING_NAMES, GenerationOptions
from .state import ProgramState

MOST_THREADS = 64
"""Programs at a time with ``num_threads="auto"``; they mostly wait for the server."""
ALIASES: Mapping[str, str] = {there: here for here, there in SAMPLING_NAMES.items()}

Arguments = Mapping[str, Any] | Sequence[Any]
"""One run of a batch: by name, or in order."""


class Function:
    """A program. Call it, ``run`` it, or ``run_batch`` it.

    Its parameters after the first are the caller's; further keyword arguments are generation options that hold for
    every ``gen`` that does not say otherwise (``temperature=0``). A parameter wins over an option of the same name.
    """

    def __init__(self, function: Callable[..., Any], bound: Mapping[str, Any] | None = None) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._bound = dict(bound or {})
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters:
            raise TypeError(f"{function.__name__} needs a first parameter, the state")
        self._parameters = frozenset(
            one.name for one in parameters[1:] if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        )

    def __call__(self, *arguments: Any, **keywords: Any) -> ProgramState:
        """``run``."""
        return self.run(*arguments, **keywords)

    def bind(self, **keywords: Any) -> Function:
        """The same program with some arguments given."""
        unknown = sorted(set(keywords) - self._parameters)
        if unknown:
            raise TypeError(f"{self._function.__name__} has no parameter {unknown[0]!r}")
        return Function(self._function, {**self._bound, **keywords})

    def run(self, *arguments: Any, backend: Any = None, stream: bool = False, **keywords: Any) -> ProgramState:
        """Run it and return its state, whose last generations may still be going on.

        Args:
            backend: where; by default what ``set_default_backend`` was given.
            stream: return at once and run in the background, for ``state.text_iter()``.

        Raises what the program itself raises; a backend's errors are kept in the state.
        """
        given, options = self._split(keywords)
        state = ProgramState(Interpreter(backend_or_default(backend), options, stream))
        program = functools.partial(self._function, state, *arguments, **{**self._bound, **given})
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
        """Run it for each entry of ``batch``, several at a time, to the end: a list of states in the same order.

        Args:
            batch: each entry a dictionary of arguments, or a list of them in order.
            num_threads: how many at a time.
            progress_bar: count on stderr.
            generator_style: return an iterator, which gives each state as soon as it and those before are done.
        """
        chosen = backend_or_default(backend)
        threads = min(MOST_THREADS, len(batch)) if num_threads == "auto" else num_threads
        if batch and threads < 1:
            raise ValueError(f"num_threads must be 'auto' or at least 1, got {num_threads}")

        def one(arguments: Arguments) -> ProgramState:
            if isinstance(arguments, Mapping):
                state = self.run(backend=chosen, **{**options, **arguments})
            else:
                state = self.run(*arguments, backend=chosen, **options)
            state.sync()
            return state

        states = _in_order(one, batch, max(1, threads), progress_bar)
        return states if generator_style else list(states)

    def _split(self, keywords: Mapping[str, Any]) -> tuple[dict[str, Any], GenerationOptions]:
        """Arguments of the function, and generation options."""
        given, options = {}, {}
        for name, value in keywords.items():
            option = ALIASES.get(name, name)
            if name not in self._parameters and option in OPTION_NAMES:
                options[option] = value
            else:
                given[name] = value
        return given, GenerationOptions(**options)


def function(program: Callable[..., Any]) -> Function:
    """Make a program of a Python function, whose first parameter is the state: ``@function``."""
    return Function(program)


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
        futures = [pool.submit(run, one) for one in batch]
        try:
            for future in futures if show else ():
                future.add_done_callback(count)
            for future in futures:
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
