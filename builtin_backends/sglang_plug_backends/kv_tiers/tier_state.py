"""The state that the KV tiers keep for each sequence."""

from __future__ import annotations

from dataclasses import dataclass, field

from sglang_plug import SequenceView

from .loading.prefix_loads import PrefixLoad


@dataclass(slots=True)
class TierState:
    """The state of one sequence in this extension."""

    keys: list[bytes] = field(default_factory=list)
    """Keys of its first blocks."""
    stored: int = 0
    """Number of its first blocks that were stored, or need not be."""
    load: PrefixLoad | None = None
    loaded_again: bool = False
    """True once blocks were loaded a second time, because earlier ones were evicted from the pool meanwhile."""
    loaded: dict[str, int] = field(default_factory=dict)
    """Tokens that came from each tier."""
    reported: bool = False
    deadline: float = 0.0
    """Time until which the sequence waits for blocks of another engine; 0: for none."""


def awaits_blocks(sequence: SequenceView) -> bool:
    """Report whether another engine sends the blocks of the prompt."""
    transfer = sequence.request.transfer
    return transfer is not None and not transfer.address
