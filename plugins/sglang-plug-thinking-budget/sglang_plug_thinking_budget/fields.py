"""The request field ``thinking_budget``."""

from __future__ import annotations

from dataclasses import dataclass

NAME = "thinking_budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingBudgetFields:
    """The request field, next to ``temperature``."""

    thinking_budget: int | None = None
    """Maximum number of tokens of reasoning; 0 ends it at once."""

    def __post_init__(self) -> None:
        if self.thinking_budget is not None and self.thinking_budget < 0:
            raise ValueError(f"{NAME} must be at least 0, got {self.thinking_budget}")
