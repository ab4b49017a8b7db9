"""The step extension that checks the host's memory between steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sglang_plug import CachePhase, ExtensionContext, PrefixPool, ServicePhase, StepExtension

from .relief import PERIOD, Relief


class MemoryRelief(StepExtension, CachePhase, ServicePhase):
    """Relieves the memory of the host, if the KV pool is there."""

    def __init__(self) -> None:
        self.relief: Relief | None = None
        """``None``: there is no pool in the host's memory."""

    def use_prefixes(self, prefixes: PrefixPool) -> None:
        """Watch the memory of a pool on the host."""
        if prefixes.kv.k and prefixes.kv.k[0].device.type == "cpu":
            self.relief = Relief(prefixes)

    def idle_timeout(self) -> float | None:
        """Return the seconds between two checks of the memory; ``None`` while the pool uses none."""
        return PERIOD if self.relief is not None and self.relief.is_needed else None

    def between_steps(self) -> None:
        """Check the memory if it is time to."""
        if self.relief is not None:
            self.relief.look()

    def info(self) -> Mapping[str, Any]:
        """Report what was done for lack of memory."""
        return {"memory_relief": None if self.relief is None else asdict(self.relief.done)}


def build(context: ExtensionContext) -> MemoryRelief:
    """Return the extension."""
    return MemoryRelief()
