"""Panics of libraries that plugins use, which are no ``Exception``.

A library written in Rust panics with a ``BaseException``. It must end a call as any other error does, and not the
thread that calls it.
"""

from __future__ import annotations

from types import TracebackType

EXIT_EXCEPTIONS = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""Exceptions that end the process or a generator; any other one is an error of the call that raises it."""


class LibraryPanic(RuntimeError):
    """A library panicked; the cause is its exception."""


class panics_as_errors:
    """Raise ``LibraryPanic`` instead of a panic inside the context, so that ``except Exception`` handles both.

    It has the traceback of the panic, which shows whose code raised it.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, (Exception, *EXIT_EXCEPTIONS)):
            raise LibraryPanic(f"{type(error).__name__}: {error}").with_traceback(traceback) from error
