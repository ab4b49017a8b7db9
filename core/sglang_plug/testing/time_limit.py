"""A time limit for work that may never return, such as ranks that wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def within(seconds: float, work: Callable[[], Result], subject: str) -> Result:
    """Return ``work()``, done in another thread, or raise what it raises.

    Raises ``AssertionError`` if it takes longer than ``seconds``; its thread is then left behind, and ends with the
    process.

    Args:
        seconds: of waiting.
        work: is called once.
        subject: the work, for the message, as the beginning of a sentence.
    """
    results = list[Result]()
    errors = list[BaseException]()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="time-limited work", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    assert results, f"{subject} takes longer than {seconds:g} seconds"
    return results[0]
