"""Answers of models that think first: what they thought, and what they say."""

from __future__ import annotations

from dataclasses import dataclass

BEGIN, END = "<think>", "</think>"
SUFFIX = "_reasoning_content"
THINKS_AT_ONCE = {"deepseek-r1": True, "qwen3-thinking": True, "qwen3": False}
"""Model type → whether the answer begins inside the thoughts, without a begin tag."""


@dataclass(frozen=True)
class ReasoningFormat:
    """Thoughts between tags, before the answer."""

    thinks_at_once: bool

    @classmethod
    def of(cls, model_type: str) -> ReasoningFormat:
        """The format of a kind of model. Raises ``ValueError`` for an unknown one."""
        if model_type not in THINKS_AT_ONCE:
            raise ValueError(f"unknown model_type {model_type!r}: known are {', '.join(sorted(THINKS_AT_ONCE))}")
        return cls(THINKS_AT_ONCE[model_type])

    def split(self, text: str) -> tuple[str, str]:
        """Thoughts and answer; all of it is thoughts if they never end."""
        opened = text.lstrip().startswith(BEGIN)
        thoughts, closed, answer = text.partition(END)
        if not closed and not opened and not self.thinks_at_once:
            return "", text
        return thoughts.strip().removeprefix(BEGIN).strip(), answer.lstrip()

    def variable(self, name: str) -> str:
        """Where the thoughts before ``name`` are kept."""
        return name + SUFFIX
