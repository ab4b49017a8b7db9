"""Exceptions of libraries that do not derive from ``Exception``, such as a panic of a library written in Rust.

pyo3 raises ``PanicException``, a ``BaseException``, so that ``except Exception`` misses it. This project treats it as
any other error of that library: it ends a request, not a task, a thread or the process.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

EXIT_EXCEPTIONS = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError)
"""Exceptions that end a process, a generator or a task, and must not be taken for errors."""
STOP_ITERATIONS = (StopIteration, StopAsyncIteration)
"""Exceptions that a coroutine or a future cannot raise: its awaiter would wait for ever."""


class ComponentPanic(RuntimeError):
    """A component's library raised an exception that is no ``Exception``; the cause is the original one."""


def is_panic(error: BaseException) -> bool:
    """Return True unless ``error`` is an ``Exception``, or ends a process, a generator or a task."""
    return not isinstance(error, (Exception, *EXIT_EXCEPTIONS))


def is_error(error: BaseException) -> bool:
    """Return True for an ``Exception`` and for a panic, which end a request and nothing else."""
    return isinstance(error, Exception) or is_panic(error)


def raise_panic_as_error(error: BaseException, where: str) -> None:
    """Raise ``ComponentPanic`` instead of a panic or of ``StopIteration``; its message contains ``where``."""
    if is_panic(error) or isinstance(error, STOP_ITERATIONS):
        raise ComponentPanic(f"{where} failed: {type(error).__name__}: {error}") from error


class panics_as_errors:
    """Raise ``ComponentPanic`` instead of a panic inside the context, so that ``except Exception`` handles both.

    It has the traceback of the panic, which shows whose code raised it. A class and not a generator, because each step
    enters some of these contexts.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and is_panic(error):
            raise ComponentPanic(f"{type(error).__name__}: {error}").with_traceback(traceback) from error
