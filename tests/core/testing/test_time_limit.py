from __future__ import annotations

import threading

import pytest

from sglang_plug.testing.time_limit import within


def test_work_in_time_gives_its_result_or_its_error() -> None:
    assert within(60, lambda: 3, "counting") == 3
    with pytest.raises(ZeroDivisionError):
        within(60, lambda: 1 // 0, "dividing")


def test_work_that_does_not_return_is_named() -> None:
    end = threading.Event()
    with pytest.raises(AssertionError, match=r"waiting takes longer than 0\.05 seconds"):
        within(0.05, end.wait, "waiting")
    end.set()
