"""The conformance test of ``on_start`` and ``on_stop`` finds resources that are not released."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from sglang_plug.testing import check_lifecycle


class Worker:
    """Owns a thread and a socket while it is started."""

    def on_start(self, info: Any) -> None:
        self.socket = socket.socket()
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.stopping.wait, name="worker", daemon=True)
        self.thread.start()

    def on_stop(self) -> None:
        self.stopping.set()
        self.thread.join()
        self.socket.close()


class AsyncWorker:
    async def on_start(self, info: Any) -> None:
        self.task = asyncio.create_task(asyncio.Event().wait(), name="worker")

    async def on_stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def test_correct_components_pass() -> None:
    check_lifecycle(Worker)
    check_lifecycle(AsyncWorker, may_be_async=True)


class KeepsThread(Worker):
    released: list[Worker] = []

    def on_stop(self) -> None:
        self.socket.close()
        self.released.append(self)


class KeepsFile(Worker):
    kept: list[Any] = []

    def on_stop(self) -> None:
        self.kept.append(self.socket.dup())
        super().on_stop()


class OpensEarly(Worker):
    kept: list[Any] = []

    def __init__(self) -> None:
        self.kept.append(socket.socket())


class KeepsTask(AsyncWorker):
    kept: list[Any] = []

    async def on_stop(self) -> None:
        self.kept.append(self.task)


class TakesNoInfo:
    def on_start(self) -> None:
        pass


class RaisesAtStop:
    def on_stop(self) -> None:
        raise OSError("not open")


class OnlyOneAtATime:
    running: list[Any] = []

    def on_start(self, info: Any) -> None:
        if self.running:
            raise OSError("address in use")
        self.running.append(self)

    def on_stop(self) -> None:
        self.running.clear()


class Hangs:
    waiting = threading.Event()

    def on_stop(self) -> None:
        self.waiting.wait()


class HangsInLoop:
    async def on_stop(self) -> None:
        await asyncio.Event().wait()


class Returns:
    def on_start(self, info: Any) -> bool:
        return True


class Neither:
    pass


class NoMethod:
    on_start = "start"

    def on_stop(self) -> None:
        pass


@pytest.mark.parametrize(
    ("faulty", "message"),
    [
        (KeepsThread, "the threads worker.* still run"),
        (KeepsFile, "socket.* is still open"),
        (OpensEarly, "socket.* is still open"),
        (KeepsTask, "the tasks worker.* still run"),
        (TakesNoInfo, r"on_start\(\) raised TypeError"),
        (RaisesAtStop, r"on_stop\(\) raised OSError: not open"),
        (OnlyOneAtATime, r"on_start\(\) raised OSError: address in use"),
        (Hangs, r"on_stop\(\) does not end within 2 s"),
        (HangsInLoop, r"on_stop\(\) does not end within 2 s"),
        (Returns, r"on_start\(\) returned True"),
        (Neither, "neither on_start nor on_stop"),
        (NoMethod, "on_start is no method"),
    ],
)
def test_planted_bugs_are_found(faulty: Any, message: str) -> None:
    Hangs.waiting.clear()
    try:
        with pytest.raises(AssertionError, match=message):
            check_lifecycle(faulty, may_be_async=True)
    finally:
        Hangs.waiting.set()
        for worker in KeepsThread.released:
            worker.stopping.set()
        for opened in (*KeepsFile.kept, *OpensEarly.kept):
            opened.close()
        KeepsFile.kept.clear(), OpensEarly.kept.clear(), KeepsThread.released.clear()


def test_async_methods_are_refused_for_the_engine_process() -> None:
    with pytest.raises(AssertionError, match=r"on_start\(\) is async, and the engine process has no event loop"):
        check_lifecycle(AsyncWorker)
