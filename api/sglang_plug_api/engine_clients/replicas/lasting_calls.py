"""Control calls whose effect outlives an engine, and has to be repeated on one that replaces it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sglang_plug import EngineClient, RequestError

logger = logging.getLogger(__name__)

UPDATE, LOAD, UNLOAD = "update_weights", "load_adapter", "unload_adapter"
LASTING = frozenset({UPDATE, LOAD, UNLOAD})


@dataclass(frozen=True, slots=True)
class Call:
    """A control call."""

    name: str
    arguments: Mapping[str, Any]


class LastingCalls:
    """The weights in use, and the adapters loaded and unloaded since the start, as the fewest calls that repeat them.

    ``lock`` is held while such calls are made and while they are repeated, so that no engine misses one.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self._first_weights: Call | None = None
        self._weights: Call | None = None
        self._unloads: dict[str, Call] = {}
        """The first unloading of each adapter that was configured at the start."""
        self._loads: dict[str, Call] = {}
        """The loading of each adapter that was loaded since the start, in order."""

    def started_with(self, info: Mapping[str, Any]) -> None:
        """Record what the engine serves when it has started."""
        if (folder := info.get("checkpoint_path")) is not None:
            self._first_weights = Call(UPDATE, {"source": folder})

    def note(self, call: Call) -> None:
        """Record a successful control call; those without a lasting effect are ignored."""
        if call.name == UPDATE:
            self._weights = call
        elif call.name in LASTING:
            adapter = call.arguments["adapter"]
            was_loaded = self._loads.pop(adapter, None) is not None
            if call.name == LOAD:
                self._loads[adapter] = call
            elif not was_loaded:  # the adapter was configured at the start
                self._unloads[adapter] = call

    def undoing(self, call: Call) -> Call | None:
        """Return the call that undoes ``call``, which was not noted yet; ``None`` if only a new engine can."""
        match call.name:
            case "update_weights":
                return self._weights or self._first_weights
            case "load_adapter":
                return Call(UNLOAD, {"adapter": call.arguments["adapter"]})
            case _:
                return self._loads.get(call.arguments["adapter"])

    async def repeat(self, client: EngineClient) -> None:
        """Repeat the calls on a new engine; an adapter that cannot be loaded any more is logged, and missing.

        Adapters are unloaded first, because the number of loaded ones may be limited.
        """
        if self._weights is not None:
            await client.control(self._weights.name, **self._weights.arguments)
        for call in [*self._unloads.values(), *self._loads.values()]:
            try:
                await client.control(call.name, **call.arguments)
            except RequestError as error:
                logger.error("An adapter could not be loaded on the new engine: %s", error)
