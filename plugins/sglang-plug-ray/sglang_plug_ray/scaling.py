"""The autoscaling policy: as many engines as their queued and running tokens need."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def engines_for_tokens(tokens: float, tokens_per_engine: float) -> int:
    """Return the number of engines for a number of tokens; at least one."""
    return max(1, math.ceil(tokens / tokens_per_engine))


class TokensPolicy:
    """Called by Serve's controller. Serve applies the bounds and the delays of ``AutoscalingConfig`` to the result.

    Args:
        tokens_per_engine: tokens that an engine shall have.
    """

    def __init__(self, tokens_per_engine: float) -> None:
        self._tokens_per_engine = tokens_per_engine

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Return the number of engines, and the state that Serve keeps for the next call."""
        metrics: Mapping[str, Mapping[Any, float]] = context.aggregated_metrics or {}
        reported = metrics.get("tokens") or {}
        if not reported:  # nothing is known yet, for example after a restart of the controller
            return context.target_num_replicas, context.policy_state
        return engines_for_tokens(sum(reported.values()), self._tokens_per_engine), context.policy_state
