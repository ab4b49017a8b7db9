"""What the API process holds of the engine: the same few calls to a thread or to a spawned process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from sglang_plug.policy import StepStats
from sglang_plug.request import Output, Request


class EngineError(RuntimeError):
    """The engine process is gone or stuck; every request in flight gets this.

    Args:
        message: what happened.
        retry_after: seconds after which an engine may serve again; ``None`` if nobody starts one.
    """

    def __init__(self, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineClient(ABC):
    """One engine, seen from an event loop. All methods belong to the loop that called ``start``."""

    @abstractmethod
    async def start(self) -> Mapping[str, Any]:
        """Start the engine and wait until it can serve; returns its ``info``.

        Raises ``ConfigError`` if the configuration cannot be served, ``EngineError`` if the engine died.
        """

    @abstractmethod
    def submit(self, request: Request) -> AsyncIterator[Output]:
        """Hand a request over and iterate over its outputs; the last one has ``finish`` set.

        Closing the iterator before that aborts the request. Outputs that wait for a slow reader are merged,
        so a reader that is slow costs no memory. Raises ``RequestError`` if the engine refuses the request
        and ``EngineError`` if it is gone.
        """

    @abstractmethod
    async def control(self, name: str, **arguments: Any) -> Any:
        """Run a control call in the engine between two steps: ``flush_cache``, ``info``, ``update_weights``, …

        Returns plain data. Raises ``RequestError`` if the engine refuses, ``EngineError`` if it is gone.
        """

    @abstractmethod
    def on_step(self, listener: Callable[[StepStats], None]) -> None:
        """Call ``listener`` with the statistics of every step."""

    @property
    @abstractmethod
    def failure(self) -> str | None:
        """Why the engine can serve no longer, or ``None``."""

    @abstractmethod
    async def wait_failed(self) -> str:
        """Returns when the engine has failed, with the reason."""

    @abstractmethod
    async def close(self) -> None:
        """Stop the engine and wait until it is gone."""
