"""Refusals: what a component cannot serve must raise the error that its contract names, and no other one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Refusal = TypeVar("Refusal", bound=Exception)


def refusal_of(call: Callable[[], object], expected: type[Refusal], case: str, *, name: str = "") -> Refusal | None:
    """Return the error with which ``call`` refuses ``case``; ``None`` if it raises nothing.

    Args:
        call: does what must be refused.
        expected: the error that the contract names.
        case: what must be refused, for the message.
        name: name of the error in the message; empty: that of ``expected``.

    Raises ``AssertionError`` if ``call`` raises another error.
    """
    try:
        call()
    except expected as error:
        return error
    except Exception as error:
        raise AssertionError(
            f"{case} must be refused with {name or expected.__name__}; it raised {type(error).__name__}: {error}"
        ) from error
    return None
