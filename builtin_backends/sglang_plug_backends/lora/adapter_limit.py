"""A limit of the number of different adapters in one step."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Ordered

from sglang_plug import SequenceView

from .lora_batch import AdapterUse

MAX_WAIT_SECONDS = 5.0
"""Seconds for which sequences with running adapters may be admitted before one whose adapter would exceed the limit."""


class AdapterLimit:
    """Leaves out waiting sequences whose adapter would be one too many.

    A sequence that was left out for long blocks all others with adapters, until one of the running adapters ends.

    Args:
        max_adapters: largest number of different adapters in one step.
        use_of: returns the adapter of a sequence; ``None``: it has none.
        now: the clock, in seconds.
    """

    def __init__(
        self,
        max_adapters: int,
        use_of: Callable[[SequenceView], AdapterUse | None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_adapters, self._use_of, self._now = max_adapters, use_of, now

    def order(self, waiting: list[SequenceView], running: Ordered[SequenceView]) -> list[SequenceView]:
        """Return the sequences that may be admitted, the first to admit first."""
        running_uses = [use for sequence in running if (use := self._use_of(sequence)) is not None]
        active = {use.adapter for use in running_uses}
        for use in running_uses:
            use.left_out_since = None
        admitted: list[SequenceView] = []
        now, closed = self._now(), False
        for sequence in waiting:
            use = self._use_of(sequence)
            if use is not None and (closed or (use.adapter not in active and len(active) >= self._max_adapters)):
                use.left_out_since = now if use.left_out_since is None else use.left_out_since
                closed = closed or now - use.left_out_since > MAX_WAIT_SECONDS
                continue
            if use is not None:
                active.add(use.adapter)
            admitted.append(sequence)
        return admitted
