"""Panics of libraries that plugins use, which are no ``Exception``.

A library written in Rust panics with a ``BaseException``. It must end a call as any other error does, and not the
thread that calls it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

EXIT_EXCEPTIONS = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""Exceptions that end the process or a generator; any other one is an error of the call that raises it."""


class LibraryPanic(RuntimeError):
    """A library panicked; the cause is its exception."""


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise ``LibraryPanic`` instead of a panic inside the context, so that ``except Exception`` handles both.

    It has the traceback of the panic, which shows whose code raised it.
    """
    try:
        yield
    except (Exception, *EXIT_EXCEPTIONS):
        raise
    except BaseException as error:
        raise LibraryPanic(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__) from error
