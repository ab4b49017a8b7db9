"""The interface of the API process to the engine: the same calls for a thread and for a spawned process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from sglang_plug.contracts.request import Output, Request
from sglang_plug.contracts.serving.observer import StepStats


class EngineError(RuntimeError):
    """The engine process is gone or stuck; every request in flight gets this.

    Args:
        message: the description of the failure.
        retry_after: seconds after which an engine may serve again; ``None`` if none will be started.
    """

    def __init__(self, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineClient(ABC):
    """One engine, seen from an event loop. All methods belong to the loop that called ``start``."""

    @abstractmethod
    async def start(self) -> Mapping[str, Any]:
        """Start the engine and wait until it can serve; return its ``info``.

        Raises ``ConfigError`` if the configuration cannot be served, ``EngineError`` if the engine died.
        """

    @abstractmethod
    def submit(self, request: Request) -> AsyncIterator[Output]:
        """Hand a request over and iterate over its outputs; the last one has ``finish`` set.

        Closing the iterator before that aborts the request. Outputs that wait for a slow reader are merged, and the
        request is paused while too many tokens wait, so a slow reader costs little memory and does not occupy the
        model. Raises ``RequestError`` if the engine refuses the request and ``EngineError`` if it is gone.
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
        """The reason why the engine can no longer serve, or ``None``."""

    @abstractmethod
    async def wait_failed(self) -> str:
        """Wait until the engine has failed; return the reason."""

    @property
    def silent_for(self) -> float:
        """Seconds without a sign of life from the engine, which gives them even while it computes; 0 if not watched."""
        return 0.0

    @abstractmethod
    async def close(self) -> None:
        """Stop the engine and wait until it is gone."""

    def kill(self) -> None:  # noqa: B027 - an engine in this process ends with it
        """End the engine's process at once, from any thread, without waiting for it."""
