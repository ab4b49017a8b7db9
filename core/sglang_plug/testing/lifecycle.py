"""Conformance test of components that hold resources: what they acquire in ``on_start`` they release in ``on_stop``."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sglang_plug.plugins.lifecycle import START, STOP, STOP_SECONDS

INFO: Mapping[str, Any] = {
    "version": "0",
    "model_path": "tiny",
    "served_model_name": "tiny",
    "architecture": "TinyForCausalLM",
    "dtype": "float32",
    "device": "cpu",
    "context_length": 128,
    "max_total_tokens": 1024,
    "max_running_requests": 8,
    "page_size": 1,
    "tp_size": 1,
    "tasks": ["generate"],
    "components": {},
    "api_key": None,
}
"""A part of what ``/server_info`` contains."""
DESCRIPTORS = Path("/proc/self/fd")
SETTLING = 1.0
"""Seconds in which threads that were told to end may still be ending."""


def check_lifecycle(make: Callable[[], object], *, may_be_async: bool = False) -> None:
    """Start and stop components, as a server does that runs, that stops early, and that is started again.

    ``on_stop`` ends in time, raises nothing and releases what ``on_start`` acquired: threads, asynchronous tasks, files
    and sockets. A component that never started leaves nothing behind, and two of them do not disturb each other.

    Args:
        make: makes a component; called several times.
        may_be_async: both methods may be ``async``, as in the API process.

    Raises:
        AssertionError: says what is wrong.
    """
    assert any(callable(getattr(make(), name, None)) for name in (START, STOP)), (
        f"the component has neither {START} nor {STOP}"
    )
    with released(f"{STOP}()"):
        make()  # a server that fails before everything is built
        asyncio.run(_check_cycles(make, may_be_async))


@contextmanager
def released(name: str) -> Iterator[None]:
    """Raise ``AssertionError`` if threads run or files are open at the end that were not at the beginning.

    Args:
        name: the call that has to release them, for the message.
    """
    gc.collect()
    threads, files = set(threading.enumerate()), _open_files()
    yield
    gc.collect()
    _check_threads(threads, name)
    open_files = _open_files() - files
    assert not open_files, f"after {name} {', '.join(sorted(open_files))} is still open"


async def _check_cycles(make: Callable[[], object], may_be_async: bool) -> None:
    tasks = asyncio.all_tasks()
    for _ in range(2):
        first, second = make(), make()
        for component in (first, second):
            await _call(component, START, may_be_async, dict(INFO))
        for component in (second, first):
            began = time.monotonic()
            await _call(component, STOP, may_be_async)
            seconds = time.monotonic() - began
            assert seconds < STOP_SECONDS, f"{STOP}() took {seconds:.1f} s; a server waits {STOP_SECONDS:g} s"
    await asyncio.sleep(0)  # cancelled tasks end
    unfinished = {task.get_name() for task in asyncio.all_tasks() - tasks}
    assert not unfinished, f"after {STOP}() the tasks {', '.join(sorted(unfinished))} still run"


async def _call(component: object, name: str, may_be_async: bool, *arguments: Any) -> None:
    method = getattr(component, name, None)
    if method is None:
        return
    assert callable(method), f"{name} is no method"
    try:
        if inspect.iscoroutinefunction(method):
            assert may_be_async, f"{name}() is async, and the engine process has no event loop"
            result = await asyncio.wait_for(method(*arguments), STOP_SECONDS if name == STOP else None)
        else:
            result = await _in_time(lambda: method(*arguments)) if name == STOP else method(*arguments)
    except AssertionError:
        raise
    except TimeoutError as error:
        raise AssertionError(f"{name}() does not end within {STOP_SECONDS:g} s") from error
    except Exception as error:
        raise AssertionError(f"{name}() raised {type(error).__name__}: {error}") from error
    assert result is None, f"{name}() returned {result!r}; nobody reads it"


async def _in_time(call: Callable[[], Any]) -> Any:
    """Return the result of ``call`` in a thread. Raises ``TimeoutError``, and whatever it raises."""
    results: list[Any] = []
    failures: list[Exception] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    deadline = time.monotonic() + STOP_SECONDS
    while thread.is_alive():
        if time.monotonic() > deadline:
            raise TimeoutError
        await asyncio.sleep(0.01)
    if failures:
        raise failures[0]
    return results[0]


def _check_threads(before: set[threading.Thread], name: str) -> None:
    deadline = time.monotonic() + SETTLING
    while running := {thread.name for thread in threading.enumerate() if thread not in before and thread.is_alive()}:
        assert time.monotonic() < deadline, f"after {name} the threads {', '.join(sorted(running))} still run"
        time.sleep(0.01)


def _open_files() -> set[str]:
    """Return the open files and sockets, where the system lists them, without the system's own."""
    if not DESCRIPTORS.is_dir():
        return set()
    names = set[str]()
    for descriptor in DESCRIPTORS.iterdir():
        try:
            target = os.readlink(descriptor)
        except OSError:  # it was that of the listing itself
            continue
        if not target.startswith(("/proc/", "/sys/")):  # another thread reads the state of the system
            names.add(f"{descriptor.name} ({target})")
    return names
