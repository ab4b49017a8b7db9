"""A limit of the number of different adapters in one step."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ordered

from sglang_plug import SequenceView

from .lora_batch import AdapterUse

MAX_OVERTAKEN = 256
"""Steps in which other sequences may overtake one whose adapter would exceed the limit of a step."""


class AdapterLimit:
    """Leaves out waiting sequences whose adapter would be one too many.

    A sequence that was overtaken for long blocks all others with adapters, until one of the running adapters ends.

    Args:
        max_adapters: largest number of different adapters in one step.
        use_of: returns the adapter of a sequence; ``None``: it has none.
    """

    def __init__(self, max_adapters: int, use_of: Callable[[SequenceView], AdapterUse | None]) -> None:
        self._max_adapters, self._use_of = max_adapters, use_of

    def order(self, waiting: list[SequenceView], running: Ordered[SequenceView]) -> list[SequenceView]:
        """Return the sequences that may be admitted, the first to admit first."""
        active = {use.adapter for sequence in running if (use := self._use_of(sequence)) is not None}
        admitted: list[SequenceView] = []
        closed = False
        for sequence in waiting:
            use = self._use_of(sequence)
            if use is not None and (closed or (use.adapter not in active and len(active) >= self._max_adapters)):
                use.overtaken += 1
                closed = closed or use.overtaken > MAX_OVERTAKEN
                continue
            if use is not None:
                active.add(use.adapter)
            admitted.append(sequence)
        return admitted
