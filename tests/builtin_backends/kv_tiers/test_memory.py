"""The memory of stores is a part of the memory that the server plans with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sglang_plug import ConfigError, MemoryPhase, MemoryRequest
from sglang_plug.engine.memory.budget import MemoryLedger
from sglang_plug.engine.startup import kv_sizing


@pytest.mark.whole_engine
@pytest.mark.parametrize("slots", [256, None])
def test_a_store_beyond_the_memory_is_refused_with_numbers(
    serve: Callable[..., Any], config: Any, slots: int | None
) -> None:
    settings = {"host": {"bytes": "100TB"}}
    with pytest.raises(ConfigError, match="no memory for --kv-store host and its buffers: 102400.12 GB .* --set host"):
        serve(config("host", settings=settings, slots=slots))


@pytest.mark.whole_engine
def test_buffers_beyond_the_memory_are_refused_with_numbers(serve: Callable[..., Any], config: Any) -> None:
    settings = {"host": {"bytes": "1GB"}, "kv-tiers": {"buffer_mib": 100 << 20}}
    with pytest.raises(ConfigError, match="buffers: 204801.00 GB are configured, .* kv-tiers.buffer_mib"):
        serve(config("host", settings=settings))


class Memory:
    """An accelerator with 100 free bytes."""

    total = free = lambda self: 100

    def release(self) -> None: ...


class Stores(MemoryPhase):
    """Takes 60 bytes of the host's memory."""

    def memory_request(self, room: float | None) -> MemoryRequest:
        return MemoryRequest(name="stores", bytes=60, advice="lower it", on_host=True)


@pytest.mark.parametrize(
    ("memory", "host", "remaining"),
    [(None, 1000, 40), (Memory(), 1000, 100), (Memory(), 50, None)],
    ids=["no accelerator", "enough on the host", "too little on the host"],
)
def test_memory_of_the_host_is_not_taken_from_an_accelerator(
    monkeypatch: pytest.MonkeyPatch, memory: Any, host: int, remaining: int | None
) -> None:
    monkeypatch.setattr(kv_sizing, "_host_bytes", lambda resolved: host)
    resolved: Any = None
    if remaining is None:
        with pytest.raises(ConfigError, match="no memory for stores"):
            kv_sizing._requests([Stores()], 100, resolved, MemoryLedger(memory))
    else:
        assert kv_sizing._requests([Stores()], 100, resolved, MemoryLedger(memory))[1] == remaining
