"""Options of the FlashInfer backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashInferSettings:
    """Settings given as ``--set flashinfer.KEY=VALUE``."""

    workspace_mib: int = 384
    """Device memory in MiB for partial results of contexts that are split over several blocks."""
    prefill: Literal["auto", "fa2", "fa3"] = "auto"
    """Kernels for several new tokens: ``fa3`` is for Hopper, ``auto`` takes it there and ``fa2`` elsewhere."""
    tensor_cores_from: int = 4
    """Query heads per key head from which decoding uses tensor cores; at most 4."""

    def __post_init__(self) -> None:
        if self.workspace_mib < 1:
            raise ValueError(f"workspace_mib must be at least 1, not {self.workspace_mib}")
        if not 1 <= self.tensor_cores_from <= 4:
            raise ValueError(f"tensor_cores_from must be 1 to 4, not {self.tensor_cores_from}")
