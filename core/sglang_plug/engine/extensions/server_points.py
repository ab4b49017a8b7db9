"""The extension points outside of steps: memory, the start of the engine, operation of the server, and the watchdog."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_plug.config import ConfigError, PluginError
from sglang_plug.contracts.extension.memory_phases import MemoryPhase, StatePhase, StoredStatePhase
from sglang_plug.contracts.extension.sampling_phases import BlockingRequest
from sglang_plug.contracts.extension.views import PrefixPool, SequenceView, TensorStore
from sglang_plug.contracts.request import Request
from sglang_plug.contracts.serving.observer import MetricCounter, MetricGauge, StepStats
from sglang_plug.engine.messages.api_messages import check_sendable

from .names import ExtensionNames


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePoints:
    """The extension points of the prefix cache and of states, which the allocator of KV slots calls."""

    states: tuple[StatePhase, ...] = ()
    """The extensions whose memory sequences own."""
    prefix_cached: tuple[Callable[[SequenceView, int], None], ...] = ()
    prefix_restored: tuple[Callable[[SequenceView, Sequence[int]], None], ...] = ()
    evicted: tuple[Callable[[Sequence[int]], None], ...] = ()
    restore_prefix: tuple[Callable[[SequenceView, bool], bool], ...] = ()
    reset: tuple[Callable[[], None], ...] = ()
    forget_stored: tuple[Callable[[], None], ...] = ()
    check: tuple[Callable[[], None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPoints:
    """The extension points of the start of an engine, which nothing calls once it serves."""

    memory: tuple[MemoryPhase, ...] = ()
    """The extensions with pools."""
    largest_request: tuple[Callable[[int], Request | None], ...] = ()
    max_draft_rows: int = 0
    """Largest number of rows that are sampled in one step with draft tokens."""
    stored_states: tuple[StoredStatePhase, ...] = ()
    """The extensions whose states can be stored outside of the device."""
    use_prefixes: tuple[Callable[[PrefixPool], None], ...] = ()
    tensor_store: tuple[Callable[[], TensorStore | None], ...] = ()
    use_tensor_store: tuple[Callable[[TensorStore], None], ...] = ()
    start: tuple[Callable[[], None], ...] = ()
    names: ExtensionNames = ExtensionNames()

    def share_tensor_store(self) -> None:
        """Give the store of tensors to the extensions that use one. Raises ``ConfigError`` if there are two stores."""
        stores = [(make, store) for make in self.tensor_store if (store := make()) is not None]
        if len(stores) > 1:
            names = self.names.of_all(make for make, _ in stores)
            raise ConfigError(f"{names} have a store of tensors; block all but one")
        for _, store in stores:
            for use in self.use_tensor_store:
                use(store)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePoints:
    """The extension points of operation, which the loop calls between steps and for control calls."""

    step_done: tuple[Callable[[StepStats], None], ...] = ()
    idle_timeout: tuple[Callable[[], float | None], ...] = ()
    between_steps: tuple[Callable[[], None], ...] = ()
    counters: tuple[Callable[[], Iterable[MetricCounter]], ...] = ()
    gauges: tuple[Callable[[], Iterable[MetricGauge]], ...] = ()
    controls: tuple[Callable[[], Mapping[str, Callable[..., Any]]], ...] = ()
    info: tuple[Callable[[], Mapping[str, Any]], ...] = ()
    close: tuple[Callable[[], None], ...] = ()
    names: ExtensionNames = ExtensionNames()

    def shortest_idle_timeout(self) -> float | None:
        """Return the seconds that an idle engine may wait; ``None``: no extension limits them."""
        timeouts = (idle_timeout() for idle_timeout in self.idle_timeout)
        return min((max(0.0, timeout) for timeout in timeouts if timeout is not None), default=None)

    def all_info(self, own: Iterable[str] = ()) -> dict[str, Any]:
        """Return the plain data of all extensions for ``/server_info``.

        Raises ``ConfigError`` if two of them use the same name, or one of ``own``, the engine's names, and
        ``PluginError`` for data that cannot be sent to another process.
        """
        owners, collected = dict.fromkeys(own, "the engine"), dict[str, Any]()
        for info in self.info:
            data = info()
            try:
                check_sendable(data)
            except TypeError as error:
                raise PluginError(f"{self.names.of(info)}: info() must return plain data: {error}") from error
            for name, value in data.items():
                if (other := owners.setdefault(name, self.names.of(info))) != self.names.of(info):
                    raise ConfigError(
                        f"{other} and {self.names.of(info)} both have {name!r} in info(); block one of them"
                    )
                collected[name] = value
        return collected


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchdogPoints:
    """The extension points of the watchdog, which its thread calls."""

    check_step: tuple[Callable[[], None], ...] = ()
    blocking_request: tuple[Callable[[], BlockingRequest | None], ...] = ()
