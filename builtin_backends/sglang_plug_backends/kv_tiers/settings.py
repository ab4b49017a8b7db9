"""Options of the tiers as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTiersSettings:
    """Settings given as ``--set kv-tiers.KEY=VALUE``."""

    block_tokens: int = 64
    """Tokens of a block, rounded up to whole pages. Servers that share a store need the same number."""
    load_seconds: float = 10.0
    """Seconds after which a load is given up, whatever computing the prefix would take."""
    load: Literal["measured", "always"] = "measured"
    """``measured``: a prefix is loaded if that is faster than computing it, as far as is known; ``always``: whenever a
    store has it."""
    buffer_mib: int = 256
    """Memory in MiB for blocks on their way to a store; blocks beyond it are not stored. As much again is for loaded
    prefixes whose requests wait. Both are part of the memory that the server plans with."""

    step_mib: int = 32
    """Maximum MiB of loaded prefixes that are copied into the KV pool in a step for which other requests wait. One
    block or state is copied in any case."""

    def __post_init__(self) -> None:
        for name in ("block_tokens", "load_seconds", "buffer_mib"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.step_mib < 0:
            raise ValueError(f"step_mib must be at least 0, not {self.step_mib}")
