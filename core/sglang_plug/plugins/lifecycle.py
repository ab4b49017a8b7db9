"""Starting and stopping the components of one process that hold resources, see ``contracts.serving.lifecycle``."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

from sglang_plug.config import ConfigError, PluginError
from sglang_plug.system.library_panics import is_error

logger = logging.getLogger(__name__)

START, STOP = "on_start", "on_stop"
STOP_SECONDS = 2.0
"""Seconds that one component may take to stop."""
TOTAL_STOP_SECONDS = 3.0
"""Seconds that all components of a process together may take; those that remain are then called and not waited for."""
LAST_SECONDS = 0.1
"""Seconds that each of those gets."""


class ComponentLifecycle:
    """The objects of one process that have ``on_start`` or ``on_stop``, in the order in which they were made.

    Safe to use from several threads: a component may be made while others are stopped.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[object, Any]] = []
        self._started: list[tuple[object, Any]] = []
        self._info: Mapping[str, Any] | None = None
        self._stopping = self._all_stopped = False
        self._stopped = threading.Event()

    def add(self, component: object, made: Any) -> None:
        """Note an object that ``component`` made; start it at once if the others have been started.

        It is not started once the others are being stopped. Raises ``PluginError`` if the start fails.
        """
        if not any(callable(getattr(made, name, None)) for name in (START, STOP)):
            return
        with self._lock:
            info = self._info
            if self._stopping:
                return
            if info is None:
                self._waiting.append((component, made))
                return
        self._start_one(component, made, info)

    def start(self, info: Mapping[str, Any]) -> None:
        """Start every object; if one fails, stop those that were started. Raises ``PluginError``."""
        try:
            for component, made in self._begin(info):
                if self._stopping:  # the process is about to end
                    return
                self._start_one(component, made, info)
        except BaseException:
            self.stop()
            raise

    async def start_async(self, info: Mapping[str, Any]) -> None:
        """``start`` in an event loop, where ``on_start`` may be ``async``."""
        try:
            for component, made in self._begin(info):
                try:
                    result = _call_start(made, info)
                    if inspect.isawaitable(result):
                        await result
                except BaseException as error:
                    raise _start_error(component, error) from error
                if not self._note_started(component, made):
                    await self._stop_one_async(component, made)
        except BaseException:
            await self.stop_async()
            raise

    def stop(self) -> None:
        """Stop the started objects, the last one first; a second call waits until the first has ended. Never raises."""
        if not self._is_first_stop():
            self._stopped.wait(TOTAL_STOP_SECONDS + STOP_SECONDS)
            return
        deadline = time.monotonic() + TOTAL_STOP_SECONDS
        try:
            while (pair := self._next_to_stop()) is not None:
                component, made = pair
                seconds = _seconds_left(deadline)
                thread = threading.Thread(target=self._stop_one, args=(component, made), name=STOP, daemon=True)
                thread.start()
                thread.join(seconds)
                if thread.is_alive():
                    _log_slow(component, seconds)
        finally:
            self._stopped.set()

    async def stop_async(self) -> None:
        """``stop`` in an event loop, where ``on_stop`` may be ``async``; other ones run in threads of their own."""
        if not self._is_first_stop():
            await asyncio.to_thread(self._stopped.wait, TOTAL_STOP_SECONDS + STOP_SECONDS)
            return
        deadline = time.monotonic() + TOTAL_STOP_SECONDS
        try:
            while (pair := self._next_to_stop()) is not None:
                component, made = pair
                seconds = _seconds_left(deadline)
                task = asyncio.ensure_future(self._stop_one_async(component, made))
                done, _ = await asyncio.wait((task,), timeout=seconds)
                if not done:
                    _log_slow(component, seconds)
                    task.cancel()
        finally:
            self._stopped.set()

    def _begin(self, info: Mapping[str, Any]) -> list[tuple[object, Any]]:
        with self._lock:
            waiting, self._waiting, self._info = self._waiting, [], info
            return waiting

    def _start_one(self, component: object, made: Any, info: Mapping[str, Any]) -> None:
        try:
            result = _call_start(made, info)
            if inspect.isawaitable(result):
                _close(result)
                raise TypeError("it is async, and this process has no event loop")
        except BaseException as error:
            raise _start_error(component, error) from error
        if not self._note_started(component, made):
            self._stop_one(component, made)

    def _note_started(self, component: object, made: Any) -> bool:
        """Note an object that has to be stopped later; return False if all others have been stopped meanwhile."""
        with self._lock:
            if not self._all_stopped:
                self._started.append((component, made))
            return not self._all_stopped

    def _is_first_stop(self) -> bool:
        with self._lock:
            first, self._stopping = not self._stopping, True
            return first

    def _next_to_stop(self) -> tuple[object, Any] | None:
        """Take the last started object, so that it is stopped once."""
        with self._lock:
            self._all_stopped = not self._started
            return self._started.pop() if self._started else None

    def _stop_one(self, component: object, made: Any) -> None:
        with _logged(component):
            result = _call_stop(made)
            if inspect.isawaitable(result):
                _close(result)
                raise TypeError("it is async, and this process has no event loop")

    async def _stop_one_async(self, component: object, made: Any) -> None:
        with _logged(component):
            if inspect.iscoroutinefunction(getattr(made, STOP, None)):
                await made.on_stop()
            else:
                await _in_thread(lambda: self._stop_one(component, made))


def _call_start(made: Any, info: Mapping[str, Any]) -> Any:
    method = getattr(made, START, None)
    return method(info) if callable(method) else None


def _call_stop(made: Any) -> Any:
    method = getattr(made, STOP, None)
    return method() if callable(method) else None


async def _in_thread(call: Callable[[], None]) -> None:
    """Wait for ``call``, which raises nothing, in a thread that does not keep the process from ending."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        call()
        with contextlib.suppress(RuntimeError):  # nobody waits any more, and the loop is closed
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, name=STOP, daemon=True).start()
    await done.wait()


@contextlib.contextmanager
def _logged(component: object) -> Iterator[None]:
    """Log any error; a task may still be cancelled."""
    try:
        yield
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        logger.error("%s failed in %s: %s: %s", component, STOP, type(error).__name__, error, exc_info=error)


def _close(result: Any) -> None:
    """Close a coroutine that is not awaited."""
    if isinstance(result, Coroutine):
        result.close()


def _seconds_left(deadline: float) -> float:
    return max(LAST_SECONDS, min(STOP_SECONDS, deadline - time.monotonic()))


def _log_slow(component: object, seconds: float) -> None:
    logger.error("%s has not ended %s after %.1f s; the process does not wait for it", component, STOP, seconds)


def _start_error(component: object, error: BaseException) -> BaseException:
    """Return the error about a component whose ``on_start`` raised; a refusal keeps its text."""
    if not (is_error(error) or isinstance(error, SystemExit)):
        return error
    text = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
    return PluginError(f"{component} failed in on_start: {text}")
