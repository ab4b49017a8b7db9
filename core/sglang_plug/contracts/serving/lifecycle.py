"""The contract of components that hold resources: threads, connections, files."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Protocol


class Lifecycle(Protocol):
    """Optional methods of the object that a component's target returns; either may be left out.

    Called once in each process that made the object, in the order in which the objects were made, and backwards at the
    end. In the API process (routes, observers, tokenizers, media processors) both may be ``async``; in the engine and
    its worker ranks (all others) they must not. A router has no such methods: its target returns a
    ``sglang_plug_api.plugin.RouteGroup``. Functions, models, commands and output parsers have none either.
    """

    def on_start(self, info: Mapping[str, Any]) -> Awaitable[None] | None:
        """Called when everything in this process is built, before it serves; an object made later, when it is made.

        ``info`` is the content of ``/server_info``; in a worker rank it is ``{"rank": ..., "tp_size": ...}``. An
        exception ends the start with the component's name.
        """

    def on_stop(self) -> Awaitable[None] | None:
        """Called after the last request if ``on_start`` did not fail, also on a signal or after the other process died.

        It runs in a thread of its own if it is not ``async``. An exception is logged. After two seconds the process
        continues without waiting for it.
        """
