"""Requests with a budget for ``sglang-plug plugins test``."""

from __future__ import annotations

from typing import Any

from sglang_plug import ReasoningBlock, SamplingParams


def requests() -> dict[str, Any]:
    """Return the arguments of ``check_logits_processor``: reasoning ends with the tokens 5 and 6."""
    cases = [SamplingParams(processor_fields={"thinking_budget": budget}) for budget in (0, 1, 3)]
    return {"cases": cases, "reasoning": ReasoningBlock(((5, 6),))}
