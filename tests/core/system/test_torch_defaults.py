"""The default dtype is restored, however many threads change it."""

from __future__ import annotations

import threading

import pytest
import torch

from sglang_plug.system.torch_defaults import default_dtype

LONG = 60.0


def test_the_default_comes_back_after_an_error() -> None:
    before = torch.get_default_dtype()
    with pytest.raises(RuntimeError, match="inside"), default_dtype(torch.bfloat16):
        assert torch.empty(1).dtype == torch.bfloat16
        raise RuntimeError("inside")
    assert torch.get_default_dtype() == before


def test_contexts_may_be_nested_in_a_thread() -> None:
    before = torch.get_default_dtype()
    with default_dtype(torch.bfloat16), default_dtype(torch.float64):
        assert torch.get_default_dtype() == torch.float64
    assert torch.get_default_dtype() == before


def test_threads_that_change_it_at_once_leave_it_as_it_was() -> None:
    """The threads are two ranks of one process that load new weights at the same time."""
    before = torch.get_default_dtype()
    entered, dtypes = threading.Event(), list[torch.dtype]()
    leave = threading.Event()

    def other() -> None:
        with default_dtype(torch.float16):
            entered.set()
            leave.wait(LONG)
            dtypes.append(torch.get_default_dtype())

    thread = threading.Thread(target=other)
    with default_dtype(torch.bfloat16):
        thread.start()
        entered.wait(0.3)  # without a lock, the other thread enters here and would later restore bfloat16
        assert torch.get_default_dtype() == torch.bfloat16
    assert entered.wait(LONG)
    leave.set()
    thread.join(LONG)
    assert dtypes == [torch.float16]
    assert torch.get_default_dtype() == before
