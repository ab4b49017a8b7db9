"""Threads in the background have a lower priority than the step loop."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from sglang_plug_backends.background_thread import NICENESS, background_thread


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the priority is that of the process")
def test_the_thread_alone_has_a_low_priority() -> None:
    before, priorities = os.getpriority(os.PRIO_PROCESS, 0), list[int]()
    thread = background_thread(
        lambda: priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())), "test"
    )
    thread.start()
    thread.join()
    assert priorities == [min(19, before + NICENESS)]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_the_thread_does_not_keep_the_process_alive() -> None:
    thread = background_thread(lambda: None, "test")
    assert thread.daemon and thread.name == "test"
    thread.start()
    thread.join()


def test_the_work_is_done_where_the_priority_cannot_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError("not permitted")

    monkeypatch.setattr(os, "setpriority", refuse)
    done = threading.Event()
    background_thread(done.set, "test").start()
    assert done.wait(60)
