"""The step extension: it follows the prefix cache and publishes what changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import zmq

from sglang_plug import CachePhase, ConfigError, ExtensionContext, SequenceView, ServicePhase, StepExtension

from . import Settings, of_replica
from .blocks import BlockTracker
from .publisher import EventPublisher, EventSockets
from .wire import EventFormat


def build(context: ExtensionContext) -> KVEvents | None:
    """Return the extension if there is an endpoint. Raises ``ConfigError`` for settings that do not fit."""
    settings: Settings = context.settings
    if not settings.endpoint:
        return None
    page_size = context.config.cache.page_size
    if settings.block_size % page_size:
        raise ConfigError(
            f"kv-events.block_size is {settings.block_size}, but must be a multiple of --page-size, which is "
            f"{page_size}"
        )
    replica = context.config.parallel.replica
    medium = "CPU" if context.device.type == "cpu" else "GPU"
    endpoint = settings.endpoint if settings.connect else of_replica(settings.endpoint, replica)
    replay_endpoint = of_replica(settings.replay_endpoint, replica)
    try:
        sockets = EventSockets(
            endpoint,
            replay_endpoint,
            connect=settings.connect,
            high_water_mark=settings.high_water_mark,
            replayed=settings.buffer_batches + 2,
        )
    except zmq.ZMQError as error:
        addresses = " or ".join(filter(None, (endpoint, replay_endpoint)))
        raise ConfigError(f"kv-events cannot use the address {addresses}: {error}; set another endpoint") from error
    encode = EventFormat(settings.format, settings.block_size, medium, replica).encode
    publisher = EventPublisher(sockets, settings.topic, encode, settings.buffer_batches)
    facts = {"endpoint": endpoint, "replay_endpoint": replay_endpoint or None, "block_size": settings.block_size}
    return KVEvents(publisher, settings.block_size, facts)


class KVEvents(StepExtension, CachePhase, ServicePhase):
    """Publishes blocks that enter and leave the prefix cache.

    Args:
        publisher: sends the events.
        block_size: tokens of a block.
        facts: addresses and the like, for ``/server_info``.
    """

    def __init__(self, publisher: EventPublisher, block_size: int, facts: Mapping[str, Any]) -> None:
        self._publisher, self._facts = publisher, facts
        self._tracker = BlockTracker(block_size, publisher.publish)

    def prefix_cached(self, sequence: SequenceView, length: int) -> None:
        """Publish the blocks that are new."""
        self._tracker.cached(sequence, sequence.extras.setdefault(self, []), sequence.slots, length)

    def prefix_restored(self, sequence: SequenceView, slots: Sequence[int]) -> None:
        """Publish blocks that came from elsewhere."""
        self._tracker.cached(sequence, sequence.extras.setdefault(self, []), slots, len(slots))

    def evicted(self, slots: Sequence[int]) -> None:
        """Publish the blocks that are gone."""
        self._tracker.evicted(slots)

    def reset(self) -> None:
        """Publish that all blocks are gone."""
        self._tracker.clear()

    def info(self) -> Mapping[str, Any]:
        """Report addresses and numbers."""
        counts = {"batches": self._publisher.batches, "blocks": len(self._tracker)}
        return {"kv_events": {**self._facts, **counts}}

    def close(self) -> None:
        """Send the last events, and close the sockets."""
        self._publisher.close()
