"""Counts the project's files that one text chat request passes, by serving one in this process and watching it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from tests.policy.source_tree import ROOT, SHELVES

CHAT = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16, "temperature": 0}
ENGINE_THREAD = "engine"
WARM_UP = 3
"""Requests before the one that is watched, so that what happens once is not counted."""


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


def trace_chat_request() -> RequestTrace:
    """Serve the demo model in this process and watch one chat request after ``WARM_UP`` others."""
    from tests.api.routes.conftest import App

    watch = _Watch(tuple(f"{ROOT / shelf}/" for shelf in SHELVES))
    threading.setprofile(watch)
    try:
        app = App()
        try:
            for _ in range(WARM_UP):
                app.answer("/v1/chat/completions", CHAT)
            sys.setprofile(watch)
            watch.trace = RequestTrace()
            app.answer("/v1/chat/completions", CHAT)
            found, watch.trace = watch.trace, None
        finally:
            sys.setprofile(None)
            app.close()
    finally:
        threading.setprofile(None)
    return found


class _Watch:
    """A profile function that notes where code is called while ``trace`` is set."""

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
