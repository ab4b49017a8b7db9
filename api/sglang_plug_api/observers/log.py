"""Log lines for prefill and decode batches, in the format that SGLang uses."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sglang_plug import Observer, StepStats

logger = logging.getLogger(__name__)


class LogObserver(Observer):
    """Logs a line for each step that computes prompts, and one per interval of decode steps.

    With several replicas a line begins with the replica, as in ``DP1``.
    """

    def __init__(self) -> None:
        self._interval = 40
        self._names_replica = False
        self._decoded: dict[int, _Decoded] = {}

    def on_start(self, info: Mapping[str, Any]) -> None:
        """Take the interval from ``--decode-log-interval``."""
        self._interval = max(1, int(info.get("log_interval", self._interval)))
        self._names_replica = "replica_states" in info

    def on_step(self, stats: StepStats) -> None:
        """Write a line if it is time for one."""
        name = f"DP{stats.replica} " if self._names_replica else ""
        if stats.prefill_sequences:
            logger.info(
                "%sPrefill batch, #new-seq: %d, #new-token: %d, #cached-token: %d, token usage: %.2f, "
                "#running-req: %d, #queue-req: %d",
                name,
                stats.prefill_sequences,
                stats.prefill_tokens,
                stats.cached_tokens,
                _usage(stats),
                stats.decode_sequences,  # as in SGLang: without the sequences of this prefill
                stats.waiting,
            )
        if not stats.decode_sequences:
            return
        decoded = self._decoded.setdefault(stats.replica, _Decoded(since=stats.time - stats.seconds))
        decoded.steps += 1
        decoded.tokens += stats.decode_sequences + stats.accepted_tokens
        decoded.accepted += stats.accepted_tokens
        decoded.has_drafts |= stats.drafted_tokens > 0
        if decoded.steps < self._interval:
            return
        seconds = stats.time - decoded.since
        logger.info(
            "%sDecode batch, #running-req: %d, #token: %d, token usage: %.2f, %sgen throughput (token/s): %.2f, "
            "#queue-req: %d",
            name,
            stats.running,
            stats.used_slots,
            _usage(stats),
            decoded.accept_length(),
            decoded.tokens / seconds if seconds > 0 else 0.0,
            stats.waiting,
        )
        self._decoded[stats.replica] = _Decoded(since=stats.time)


@dataclass(slots=True)
class _Decoded:
    """Sums over the decode steps of one replica since its last line."""

    since: float
    """Time at which they begin."""
    steps: int = 0
    tokens: int = 0
    accepted: int = 0
    has_drafts: bool = False

    def accept_length(self) -> str:
        """Return the tokens per sequence and step, if any were drafted."""
        return f"accept len: {self.tokens / (self.tokens - self.accepted):.2f}, " if self.has_drafts else ""


def _usage(stats: StepStats) -> float:
    return stats.used_slots / stats.capacity if stats.capacity else 0.0
