"""Classification of exceptions: errors, or the end of a process, a generator or a task."""

from __future__ import annotations

import asyncio

import pytest

from sglang_plug.system.library_panics import ComponentPanic, is_error, is_panic, panics_as_errors, raise_panic_as_error


class Panic(BaseException):
    """A stand-in for the exceptions of a library written in Rust."""


def test_a_panic_is_an_error_and_no_exception() -> None:
    assert is_panic(Panic()) and is_error(Panic())
    assert not is_panic(ValueError()) and is_error(ValueError())


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_what_ends_something_is_no_error(kind: type[BaseException]) -> None:
    assert not is_panic(kind()) and not is_error(kind())
    raise_panic_as_error(kind(), "the tokenizer")


@pytest.mark.parametrize("error", [Panic("x"), StopIteration("x"), StopAsyncIteration("x")])
def test_what_a_future_cannot_raise_becomes_an_exception(error: BaseException) -> None:
    with pytest.raises(ComponentPanic, match="the tokenizer failed: .*: x") as caught:
        raise_panic_as_error(error, "the tokenizer")
    assert caught.value.__cause__ is error


def test_a_panic_inside_the_context_is_an_error_with_its_traceback() -> None:
    def fail() -> None:
        raise Panic("index out of bounds")

    with pytest.raises(ComponentPanic, match="Panic: index out of bounds") as caught, panics_as_errors():
        fail()
    assert isinstance(caught.value.__cause__, Panic) and caught.traceback[-1].name == "fail"


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(1), asyncio.CancelledError()])
def test_anything_else_leaves_the_context_as_it_is(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, panics_as_errors():
        raise error
    assert caught.value is error
