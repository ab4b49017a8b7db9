"""The contract of deployments: an engine as the API process talks to it, wherever the engine runs.

A deployment makes an ``EngineClient`` for one engine: in a process of this machine, in a thread, or in an actor of
another platform. The server composes several of them (``--replicas``), restarts those that fail, and routes requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglang_plug.config import EngineConfig
from sglang_plug.contracts.request import Output, Request
from sglang_plug.contracts.serving.observer import StepStats

if TYPE_CHECKING:
    from sglang_plug.plugins.registry import Plugins


class EngineError(RuntimeError):
    """The engine has ended or is stuck; every request in flight gets this.

    Args:
        message: the description of the failure.
        retry_after: seconds after which an engine may serve again; ``None`` if none will be started.
        replica: number of the replica that failed while others may serve; ``None`` if no other one can.
    """

    def __init__(self, message: str, *, retry_after: int | None = None, replica: int | None = None) -> None:
        super().__init__(message)
        self.retry_after, self.replica = retry_after, replica


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLaunch:
    """The configuration and the resources of one engine, for the deployment that starts it."""

    config: EngineConfig
    """The configuration of this engine; ``config.parallel.replica`` is its number among the replicas."""
    plugins: Plugins
    """The plugins of this process. The engine must see the same ones: compare ``plugins.fingerprint``."""
    cores: tuple[int, ...] = ()
    """The CPU cores that belong to this engine, if it runs on this machine; empty: any."""


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """The address of an ``EngineServer``, and the key by which clients know that it is the right one."""

    host: str
    port: int
    public_key: bytes
    """CURVE key in Z85, 40 characters."""


@dataclass(frozen=True, slots=True)
class ReplicaReply:
    """The answer of one replica to a control call."""

    replica: int
    value: Any


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """The state of a replica."""

    replica: int
    failure: str | None
    """The reason why it cannot serve, for now or for good; ``None``: it serves."""
    heartbeat_age: float
    """Seconds without a heartbeat."""
    role: str = ""
    """``prefill`` or ``decode`` if its requests are computed by two engines; empty: it computes them alone."""


class EngineClient(ABC):
    """One engine, or several that act as one, seen from an event loop.

    All methods but ``kill`` belong to the loop that called ``start``.
    """

    @abstractmethod
    async def start(self) -> Mapping[str, Any]:
        """Start the engine and wait until it can serve; return its ``info``.

        Raises ``ConfigError`` if the configuration cannot be served, ``EngineError`` if the engine died. A client is
        started once; another engine needs another client.
        """

    @abstractmethod
    def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        """Hand a request over and iterate over its outputs; the last one has ``finish`` set.

        Closing the iterator before that aborts the request. Outputs that wait for a slow reader are merged, and the
        request is paused while too many tokens wait, so a slow reader costs little memory and does not occupy the
        model. Raises ``RequestError`` if the engine refuses the request, also one with the id of another request in
        flight, and ``EngineError`` if the engine has ended.
        """

    @abstractmethod
    async def control(self, name: str, **arguments: Any) -> Any:
        """Run a control call in the engine between two steps: ``flush_cache``, ``info``, ``update_weights``, …

        Returns plain data; several engines all run it, and their answers are merged, see ``control_each``. Raises
        ``RequestError`` if the engine refuses, with status 404 for a call that it does not know, and ``EngineError`` if
        the engine has ended.
        """

    @abstractmethod
    def on_step(self, listener: Callable[[StepStats], None]) -> None:
        """Call ``listener`` with the statistics of every step."""

    @property
    @abstractmethod
    def failure(self) -> str | None:
        """The reason why the engine cannot serve, or ``None``."""

    @abstractmethod
    async def wait_failed(self) -> str:
        """Wait until the engine has failed for good; return the reason."""

    @abstractmethod
    async def close(self) -> None:
        """Stop the engine and wait until it has ended. May be called twice, and after a failure."""

    def kill(self) -> None:  # noqa: B027 - an engine may have nothing to kill
        """End the engine at once, from any thread, without waiting for it; it has failed then."""

    @property
    def heartbeat_age(self) -> float:
        """Seconds without a heartbeat from the engine, which sends them even while it computes; 0 if not watched."""
        return 0.0

    @property
    def replicas(self) -> Sequence[ReplicaStatus]:
        """The state of each engine behind this client."""
        return (ReplicaStatus(0, self.failure, self.heartbeat_age),)

    async def control_each(self, name: str, **arguments: Any) -> Sequence[ReplicaReply]:
        """Run a control call like ``control``, and return the answer of each engine that serves."""
        return (ReplicaReply(0, await self.control(name, **arguments)),)
