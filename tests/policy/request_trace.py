"""Counts the project's files that one text chat request passes, by serving one in this process and watching it."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from types import FrameType
from typing import Any

from tests.policy.source_tree import PACKAGE_FOLDERS, ROOT

CHAT = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16, "temperature": 0}
ENGINE_THREAD = "engine"
WARM_UP = 3
"""Number of requests before the watched ones, so that work that is done only once is not counted."""
WATCHED = 3
"""Number of watched requests; only code that ran for each of them counts, not that of unrelated threads."""


def described_files() -> list[str]:
    """Return the files that ``docs/architecture.md`` lists as the path of a chat request, in order."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return re.findall(r"^\| \d+ \| `([^`]+)` \|", page, re.MULTILINE)


@dataclass
class RequestTrace:
    """The files and classes of the project that executed code while one request was served."""

    serving: set[str] = field(default_factory=set)
    """Files that ran in the thread of the engine."""
    answering: set[str] = field(default_factory=set)
    """Files that ran in all other threads: the API."""
    constructed: set[str] = field(default_factory=set)
    """Classes of the project whose ``__init__`` was called."""

    @property
    def files(self) -> set[str]:
        """Every file that ran."""
        return self.serving | self.answering

    def common(self, other: RequestTrace) -> RequestTrace:
        """Return the files and classes of both traces."""
        return RequestTrace(
            self.serving & other.serving, self.answering & other.answering, self.constructed & other.constructed
        )


def trace_chat_request() -> RequestTrace:
    """Serve the demo model in this process and watch chat requests after ``WARM_UP`` others."""
    from tests.api.routes.conftest import App

    watch = _Watch(tuple(f"{ROOT / package}/" for package in PACKAGE_FOLDERS))
    threading.setprofile(watch)
    try:
        app = App()
        try:
            for _ in range(WARM_UP):
                app.answer("/v1/chat/completions", CHAT)
            sys.setprofile(watch)
            traces = []
            for _ in range(WATCHED):
                watch.trace = RequestTrace()
                traces.append(watch.trace)
                app.answer("/v1/chat/completions", CHAT)
            watch.trace = None
        finally:
            sys.setprofile(None)
            app.close()
    finally:
        threading.setprofile(None)
    return reduce(RequestTrace.common, traces)


class _Watch:
    """A profile function that records the files of called code while ``trace`` is set."""

    def __init__(self, folders: Sequence[str]) -> None:
        self.trace: RequestTrace | None = None
        self._folders = tuple(folders)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        trace = self.trace
        if trace is None or event != "call":
            return
        code = frame.f_code
        if code.co_filename.startswith(self._folders):
            path = Path(code.co_filename).relative_to(ROOT).as_posix()
            engine = threading.current_thread().name == ENGINE_THREAD
            (trace.serving if engine else trace.answering).add(path)
        if code.co_name == "__init__":
            kind = type(frame.f_locals.get("self"))
            if kind.__module__.startswith("sglang_plug"):
                trace.constructed.add(kind.__name__)
