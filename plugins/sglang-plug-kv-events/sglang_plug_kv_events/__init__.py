"""KV-cache events for routers. Declares only: this module is imported at every start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sglang_plug import StepExtensionSpec, hookimpl

api_version = 1

FORMATS = ("array", "map")


@hookimpl
def register_step_extensions() -> Iterator[StepExtensionSpec]:
    yield StepExtensionSpec(
        name="kv-events",
        target=f"{__name__}.extension:build",
        settings=f"{__name__}:Settings",
        needs=("msgspec", "zmq"),
        summary="publishes KV-cache events for routers, in the formats of vLLM and SGLang",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings given as ``--set kv-events.KEY=VALUE``."""

    endpoint: str = ""
    """Address of the publisher, such as ``tcp://127.0.0.1:5557``; empty: nothing is published. The events contain the
    tokens of prompts and answers, and everybody who can connect receives them."""
    replay_endpoint: str = ""
    """Address at which subscribers ask for earlier batches, such as ``tcp://127.0.0.1:5657``; empty: nowhere."""
    connect: bool = False
    """Connect to a subscriber at ``endpoint``, instead of waiting for subscribers there."""
    topic: str = "kv-events"
    """First frame of each message."""
    format: str = "array"
    """``array``: events of SGLang and of vLLM until 2025; ``map``: those of newer versions of vLLM."""
    block_size: int = 16
    """Tokens of a block, a multiple of ``--page-size``; the router's has to be the same."""
    buffer_batches: int = 10_000
    """Maximum number of batches that can be replayed one by one; those before them are replayed as one."""
    high_water_mark: int = 100_000
    """Maximum number of messages that wait for one slow subscriber; further ones are dropped for it."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for a value that is out of bounds."""
        for name in ("block_size", "buffer_batches", "high_water_mark"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 1")
        if self.format not in FORMATS:
            raise ValueError(f"format is {self.format!r}, but must be one of {', '.join(FORMATS)}")
        for name in ("endpoint", "replay_endpoint"):
            address = getattr(self, name)
            if address and not address.startswith(("tcp://", "ipc://")):
                raise ValueError(f"{name} is {address!r}, but must begin with tcp:// or ipc://")
            if address.startswith("tcp://") and not address.rpartition(":")[2].isdigit():
                raise ValueError(f"{name} is {address!r}, but must end with a port, like tcp://127.0.0.1:5557")
        if self.replay_endpoint and not self.endpoint:
            raise ValueError("replay_endpoint needs endpoint, which is empty")


def of_replica(endpoint: str, replica: int) -> str:
    """Return the address of a replica: its port, or the end of the path, rises with the number of the replica."""
    if not endpoint or replica == 0:
        return endpoint
    if endpoint.startswith("tcp://"):
        host, _, port = endpoint.rpartition(":")
        return f"{host}:{int(port) + replica}"
    return f"{endpoint}_dp{replica}"
