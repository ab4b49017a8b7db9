"""Requests whose prompts are being made, and that may be aborted meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from sglang_plug import RequestError
from sglang_plug_api.answers.errors import ApiError

from .callers import Caller
from .gather import stop_tasks

Result = TypeVar("Result")


class Preparation:
    """The time of a request before its jobs begin: its texts are tokenized and its images are fetched.

    An abort ends the wait for images. The jobs, which are made nevertheless, end when they begin.
    """

    def __init__(self) -> None:
        self.with_all = False
        """True if all requests were aborted."""
        self._caller = Caller()
        self._ids = frozenset[str]()
        self._aborted = set[str]()
        self._is_aborted = asyncio.Event()

    def begin(self, ids: frozenset[str], caller: Caller) -> None:
        """Give the request the ``ids`` that the client knows it by; several if each prompt has an id."""
        self._ids, self._caller = ids, caller

    def belongs_to(self, request: str, caller: Caller) -> bool:
        """Return True if ``caller`` may use the request and ``request`` is an id of it."""
        return request in self._ids and caller.may_use(self._caller.owner)

    def abort(self, request: str | None) -> bool:
        """Abort the prompts with this id, or all if ``None``; return False if they were aborted before."""
        if self._is_aborted.is_set() or request in self._aborted:
            return False
        self.with_all = request is None
        if request is not None:
            self._aborted.add(request)
        if request is None or self._aborted == self._ids:
            self._is_aborted.set()
        return True

    def has_aborted(self, request: str) -> bool:
        """Return True if the jobs of the prompts with this id have to end when they begin."""
        return self._is_aborted.is_set() or request in self._aborted

    async def unless_aborted(self, work: Coroutine[Any, Any, Result], *, is_batch_line: bool) -> Result:
        """Await ``work``, or cancel it when the request is aborted.

        Raises ``ApiError`` then, or ``RequestError`` with status 503 for a line of a batch that has to run again.
        """
        task, aborted = asyncio.ensure_future(work), asyncio.ensure_future(self._is_aborted.wait())
        try:
            await asyncio.wait((task, aborted), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        finally:
            await stop_tasks(task, aborted)
        if self.with_all and is_batch_line:
            raise batch_line_aborted()
        raise ApiError("the request was aborted through /abort_request while its images were fetched")


def batch_line_aborted() -> RequestError:
    """Return the error of a line of a batch that was aborted with all requests, so that it runs again."""
    return RequestError("All requests were aborted; the line of the batch runs again.", 503)
