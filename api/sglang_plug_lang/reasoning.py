"""Separation of reasoning and answer."""

from __future__ import annotations

from dataclasses import dataclass

BEGIN, END = "<think>", "</think>"
SUFFIX = "_reasoning_content"
STARTS_IN_REASONING = {"deepseek-r1": True, "qwen3-thinking": True, "qwen3": False}
"""Maps a model type to True if its output begins inside the reasoning, without a begin tag."""


@dataclass(frozen=True)
class ReasoningFormat:
    """Format of outputs with reasoning between tags before the answer."""

    starts_in_reasoning: bool

    @classmethod
    def of(cls, model_type: str) -> ReasoningFormat:
        """Return the format of a model type. Raises ``ValueError`` for an unknown one."""
        if model_type not in STARTS_IN_REASONING:
            raise ValueError(f"unknown model_type {model_type!r}: known are {', '.join(sorted(STARTS_IN_REASONING))}")
        return cls(STARTS_IN_REASONING[model_type])

    def split(self, text: str) -> tuple[str, str]:
        """Return reasoning and answer; everything is reasoning if it does not end."""
        opened = text.lstrip().startswith(BEGIN)
        reasoning, closed, answer = text.partition(END)
        if not closed and not opened and not self.starts_in_reasoning:
            return "", text
        return reasoning.strip().removeprefix(BEGIN).strip(), answer.lstrip()

    def variable(self, name: str) -> str:
        """Return the variable for the reasoning before ``name``."""
        return name + SUFFIX
