"""Body of ``/v1/score``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from .base import Integer, Name, Number, RequestBody, TokenId

MAX_LABELS = 1024
MAX_ITEMS = 65536


class ScoreBody(RequestBody):
    """``POST /v1/score``: how likely each label follows the query with each item."""

    model: Name | None = None
    query: str | list[TokenId]
    items: str | list[str] | list[list[TokenId]]
    label_token_ids: Annotated[list[TokenId], Field(min_length=1, max_length=MAX_LABELS)]
    apply_softmax: bool = False
    """Probabilities among the labels instead of those among the whole vocabulary."""
    item_first: bool = False
    """Item, then query; by default query, then item."""
    temperature: Number | None = None
    return_token_logprobs: bool | None = None
    rid: Name | None = None
    priority: Integer | None = None
    user: str | None = None

    @model_validator(mode="after")
    def _fits(self) -> ScoreBody:
        if self.items in ([], "") or isinstance(self.items, list) and len(self.items) > MAX_ITEMS:
            raise ValueError(f"items must have between 1 and {MAX_ITEMS} entries")
        texts = isinstance(self.items, str) or all(isinstance(item, str) for item in self.items)
        if texts != isinstance(self.query, str):
            raise ValueError("query and items must both be text, or both be token ids")
        if self.temperature not in (None, 1.0):
            raise ValueError("temperature is not supported: scores are those of the model's own distribution")
        return self

    def prompts(self) -> list[Any]:
        """Query and item together, text or token ids, one for each item."""
        query: Any = self.query
        items: list[Any] = [self.items] if isinstance(self.items, str) else list(self.items)
        return [item + query if self.item_first else query + item for item in items]
