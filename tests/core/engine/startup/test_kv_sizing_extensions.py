"""The KV pool next to extensions that take memory of the host."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sglang_plug import ConfigError, EngineConfig, MemoryPhase, MemoryRequest, Plugins, StepExtension
from sglang_plug.config import ModelOptions, ScheduleOptions
from sglang_plug.engine.execution.rank_components import build_rank_components
from sglang_plug.engine.extensions.points import extension_points
from sglang_plug.engine.loading.resolve import resolve
from sglang_plug.engine.memory.budget import DeviceMemory, MemoryLedger
from sglang_plug.engine.startup.kv_sizing import bytes_per_slot, pool_capacity


class Accelerator:
    """A device that always has 64 MiB of free memory."""

    def total(self) -> int:
        return 64 << 20

    def free(self) -> int:
        return 64 << 20

    def release(self) -> None: ...


class HostStores(StepExtension, MemoryPhase):
    """A step extension that requests host memory; ``bytes_of`` computes its size from the free memory."""

    def __init__(self, bytes_of: Callable[[float], float]) -> None:
        self._bytes_of = bytes_of

    def memory_request(self, room: float | None) -> MemoryRequest:
        return MemoryRequest(name="stores", bytes=int(self._bytes_of(room or 0.0)), advice="lower it", on_host=True)


class Sizing:
    """Computes the size of the pool for the demo model, with extensions that take host memory."""

    def __init__(self) -> None:
        config = EngineConfig(
            model=ModelOptions(device="cpu"), schedule=ScheduleOptions(chunked_prefill_size=64, max_running_requests=4)
        )
        self._resolved = resolve(config, Plugins.discover(config.plugins))
        self.slot = bytes_per_slot(self._resolved)

    def slots(self, memory: DeviceMemory | None, **extensions: HostStores) -> int:
        points = extension_points(extensions)
        components = build_rank_components(self._resolved, points.forward)
        return pool_capacity(components, MemoryLedger(memory), points).slots


def test_memory_of_the_host_for_extensions_is_not_the_pool_s() -> None:
    sizing = Sizing()
    stores = HostStores(lambda room: room - 50 * sizing.slot)
    assert sizing.slots(None, stores=stores) in (50, 51)  # the remaining memory may be less than a slot
    with pytest.raises(ConfigError, match="no memory for stores: .* are left for it; lower it"):
        sizing.slots(None, stores=HostStores(lambda room: room + 2))


def test_memory_of_the_host_is_not_taken_from_an_accelerator() -> None:
    sizing = Sizing()
    alone = sizing.slots(Accelerator())
    assert sizing.slots(Accelerator(), stores=HostStores(lambda room: room / 2)) == alone
    assert sizing.slots(Accelerator(), stores=HostStores(lambda room: room + 2)) == alone
    with pytest.raises(ConfigError, match="no memory for stores: .* of the host's memory are left for it; lower it"):
        sizing.slots(Accelerator(), stores=HostStores(lambda room: 1 << 60))
