"""Runs tests in another process, in which Triton's kernels are interpreted.

Triton decides when a kernel is defined whether it is compiled or interpreted, so one process can do only one of the
two. Tests with the mark ``interpreted`` run here as usual if this process interprets; otherwise a process next to it
collects the same files and runs those tests one at a time as it is told. Its reports become those of the tests.

This file is also the program of that process.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

MARK = "interpreted"
SHOWN = 3000
"""Number of trailing characters of the process's output that are shown if the process ends too early."""


class InterpretedProcess:
    """The process with interpreted kernels, which the first test that needs it starts."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, item: pytest.Item, following: pytest.Item | None) -> Iterator[pytest.TestReport]:
        """Run a test in the process, and yield its reports."""
        if self._process is None:
            self._start(item.session)
        self._channel.write(json.dumps([item.nodeid, following.nodeid if following is not None else None]) + "\n")
        self._channel.flush()
        hook = item.config.hook
        for line in self._channel:
            if (report := json.loads(line)) is None:
                return
            restored: pytest.TestReport = hook.pytest_report_from_serializable(config=item.config, data=report)
            if isinstance(restored.longrepr, list):  # where and why a test was skipped, which JSON has no tuples for
                restored.longrepr = tuple(restored.longrepr)
            yield restored
        yield self._broken(item)

    def _start(self, session: pytest.Session) -> None:
        files = sorted({str(item.path) for item in session.items if is_interpreted(item)})
        here, child_end = socket.socketpair()
        self._output = tempfile.TemporaryFile()
        with child_end:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(child_end.fileno()), *files],
                cwd=session.config.rootpath,
                env={**_without_pytests_own(os.environ), "TRITON_INTERPRET": "1"},
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                pass_fds=[child_end.fileno()],
            )
        with here:
            self._channel = here.makefile("rw", encoding="utf-8")

    def _broken(self, item: pytest.Item) -> pytest.TestReport:
        assert self._process is not None
        status = self._process.wait()
        self._output.seek(0)
        output = self._output.read().decode(errors="replace")[-SHOWN:]
        self.close()
        text = f"the process that interprets Triton's kernels ended with {status}:\n{output}"
        return pytest.TestReport(
            item.nodeid, item.location, {name: 1 for name in item.keywords}, "failed", text, "call"
        )

    def close(self) -> None:
        """End the process, and wait for its end."""
        if self._process is not None:
            self._channel.close()
            self._process.wait()
            self._output.close()
            self._process = None


def is_interpreted(item: pytest.Item) -> bool:
    """Return whether a test needs Triton's interpreter."""
    return item.get_closest_marker(MARK) is not None


def triton_is_interpreted() -> bool:
    """Return whether this process interprets kernels, which are loaded already when a test asks."""
    return importlib.import_module("sglang_plug_backends.triton.launch").INTERPRETED


def _without_pytests_own(environment: Any) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}


class RemoteRunner:
    """A pytest plugin that runs the tests named by ``channel``, and writes their reports to it, with ``null`` after
    each test."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests that are named by the channel instead of all collected tests."""
        self._config = session.config
        items = {item.nodeid: item for item in session.items}
        for line in self._channel:
            name, following = json.loads(line)
            session.config.hook.pytest_runtest_protocol(item=items[name], nextitem=items.get(following))
            self._send(None)
        return True

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send the report of one phase of a test."""
        self._send(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def _send(self, message: Any) -> None:
        self._channel.write(json.dumps(message) + "\n")
        self._channel.flush()


def main(descriptor: str, files: Sequence[str]) -> int:
    """Collect ``files``, and run the tests that are named over the socket with this file descriptor."""
    with socket.socket(fileno=int(descriptor)) as channel, channel.makefile("rw", encoding="utf-8") as lines:
        return int(
            pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *files], plugins=[RemoteRunner(lines)])
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
