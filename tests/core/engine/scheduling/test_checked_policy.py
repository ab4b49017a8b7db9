from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sglang_plug.engine.scheduling.checked_policy import CheckedPolicy


class Policy:
    def __init__(self, order: Callable[[list[Any]], Any]) -> None:
        self._order = order

    def order(self, waiting: Any, match: Any) -> Any:
        return self._order(waiting)


def ordered(order: Callable[[list[Any]], Any]) -> Any:
    return CheckedPolicy(Policy(order), "schedule 'mine'").order([object() for _ in range(3)], lambda sequence: None)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("order", [lambda waiting: waiting, lambda waiting: waiting[::-1], tuple])
def test_any_order_of_what_waits_is_taken(order: Any) -> None:
    assert len(ordered(order)) == 3


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (lambda waiting: waiting[1:], "returned 2, of which 2"),
        (lambda waiting: [*waiting, waiting[0]], "returned 4, of which 3"),
        (lambda waiting: [*waiting[:2], object()], "returned 3, of which 2"),
        (lambda waiting: [waiting[0]] * 3, "returned 3, of which 1"),
        (lambda waiting: waiting.pop() and waiting, "returned 2, of which 2"),
    ],
    ids=["forgets", "repeats", "invents", "repeats one", "takes out"],
)
def test_what_would_leave_a_sequence_waiting_names_the_policy(order: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=f"schedule 'mine': order.. must return the 3 sequences .*{message}"):
        ordered(order)
