"""Log lines for prefill and decode batches, in the format that SGLang uses."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from sglang_plug import Observer, StepStats

logger = logging.getLogger(__name__)


class LogObserver(Observer):
    """Logs a line for each step that computes prompts, and one per interval of decode steps."""

    def __init__(self) -> None:
        self._interval = 40
        self._steps = self._tokens = self._accepted = 0
        self._drafted = False
        self._since: float | None = None

    def on_start(self, info: Mapping[str, Any]) -> None:
        """Take the interval from ``--decode-log-interval``."""
        self._interval = max(1, int(info.get("log_interval", self._interval)))

    def on_step(self, stats: StepStats) -> None:
        """Write a line if it is time for one."""
        if stats.prefill_sequences:
            logger.info(
                "Prefill batch, #new-seq: %d, #new-token: %d, #cached-token: %d, token usage: %.2f, "
                "#running-req: %d, #queue-req: %d",
                stats.prefill_sequences,
                stats.prefill_tokens,
                stats.cached_tokens,
                _usage(stats),
                stats.decode_sequences,  # as in SGLang: without the sequences of this prefill
                stats.waiting,
            )
        if not stats.decode_sequences:
            return
        if self._since is None:
            self._since = stats.time - stats.seconds
        self._steps += 1
        self._tokens += stats.decode_sequences + stats.accepted_tokens
        self._accepted += stats.accepted_tokens
        self._drafted |= stats.drafted_tokens > 0
        if self._steps < self._interval:
            return
        seconds = stats.time - self._since
        logger.info(
            "Decode batch, #running-req: %d, #token: %d, token usage: %.2f, %sgen throughput (token/s): %.2f, "
            "#queue-req: %d",
            stats.running,
            stats.used_slots,
            _usage(stats),
            self._accept_length(),
            self._tokens / seconds if seconds > 0 else 0.0,
            stats.waiting,
        )
        self._steps, self._tokens, self._accepted, self._drafted, self._since = 0, 0, 0, False, stats.time

    def _accept_length(self) -> str:
        """Return the tokens per sequence and step, if any were drafted."""
        return f"accept len: {self._tokens / (self._tokens - self._accepted):.2f}, " if self._drafted else ""


def _usage(stats: StepStats) -> float:
    return stats.used_slots / stats.capacity if stats.capacity else 0.0
