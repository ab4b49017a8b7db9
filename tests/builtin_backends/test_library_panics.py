"""Panics of libraries become exceptions; exceptions that end a process or task are not changed."""

from __future__ import annotations

import pytest

from sglang_plug_backends.library_panics import LibraryPanic, panics_as_errors


class Panic(BaseException):
    """A stand-in for the exceptions of a library written in Rust."""


def test_a_panic_is_an_error_with_its_traceback() -> None:
    def fail() -> None:
        raise Panic("index out of bounds")

    with pytest.raises(LibraryPanic, match="Panic: index out of bounds") as caught, panics_as_errors():
        fail()
    assert isinstance(caught.value.__cause__, Panic) and caught.traceback[-1].name == "fail"


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(1), GeneratorExit()])
def test_anything_else_stays_as_it_is(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, panics_as_errors():
        raise error
    assert caught.value is error
