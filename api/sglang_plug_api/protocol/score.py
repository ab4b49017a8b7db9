"""Body of ``/v1/score``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, Field, model_validator

from sglang_plug_api.answers.errors import WrongField

from .base import Many, Number, TokenId, TokenLists, Tokens
from .embeddings import TruncatedBody
from .misplaced import SCORE, Remedies

MAX_LABELS = 1024
MAX_ITEMS = 65536
SECOND = ("text_2", "documents", "data_2")
"""Names of the texts that are compared with others."""

Texts = Annotated[Many[str], Field(min_length=1, max_length=MAX_ITEMS)]


@dataclass(frozen=True, slots=True)
class QueryWithItems(Sequence[Any]):
    """A query joined with each of several items: texts, or token ids. They are joined when they are read.

    All of them together may be far larger than the request.
    """

    query: Any
    items: Sequence[Any]
    item_first: bool

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        """Return the query with one item."""
        return self.items[index] + self.query if self.item_first else self.query + self.items[index]

    def cut(self, cut: Callable[[Any], Any]) -> QueryWithItems:
        """Return the query and the items cut before they are joined, so that no long prompt is made to be cut.

        ``cut`` is also to be applied to what they are joined to; the result is the same.
        """
        return replace(self, query=cut(self.query), items=[cut(item) for item in self.items])


class ScoreBody(TruncatedBody):
    """``POST /v1/score``: how likely each label follows the query with each item, or how well two texts fit."""

    misplaced: ClassVar[Remedies] = SCORE

    query: str | Tokens | None = None
    items: str | Many[str] | TokenLists | None = None
    label_token_ids: Annotated[Many[TokenId], Field(min_length=1, max_length=MAX_LABELS)] | None = None
    apply_softmax: bool = False
    """Probabilities among the labels instead of those among the whole vocabulary."""
    item_first: bool = False
    """Item, then query; by default query, then item."""
    temperature: Annotated[Number, Field(gt=0)] | None = None
    """Divides the log-probabilities of the labels before ``apply_softmax``."""
    return_token_logprobs: bool | None = None
    text_1: str | Texts | None = Field(None, validation_alias=AliasChoices("text_1", "queries", "data_1"))
    """Instead of query, items and labels: one text for all of ``text_2``, or as many."""
    text_2: str | Texts | None = Field(None, validation_alias=AliasChoices(*SECOND))

    @model_validator(mode="before")
    @classmethod
    def _second_texts(cls, fields: Any) -> Any:
        """Read ``items`` next to ``queries``, which vLLM's clients may send, as ``text_2``."""
        if not isinstance(fields, dict) or fields.get("queries") is None or fields.get("items") is None:
            return fields
        if any(fields.get(name) is not None for name in ("query", "label_token_ids", *SECOND)):
            return fields
        return {name: value for name, value in fields.items() if name != "items"} | {"text_2": fields["items"]}

    @property
    def has_texts(self) -> bool:
        """True if two texts are compared; otherwise there are a query, items and labels."""
        return self.text_1 is not None

    @model_validator(mode="after")
    def _one_form(self) -> ScoreBody:
        labels = {"query": self.query, "items": self.items, "label_token_ids": self.label_token_ids}
        texts = {"text_1": self.text_1, "text_2": self.text_2}
        fields = [name for name, value in (labels | texts).items() if value is not None]
        if fields not in (list(labels), list(texts)):
            present = f"; this has {', '.join(fields)}" if fields else ""
            raise ValueError(f"give either query, items and label_token_ids, or text_1 and text_2{present}")
        return self

    @model_validator(mode="after")
    def _check_together(self) -> ScoreBody:
        if self.has_texts:
            return self._check_texts()
        if self.items in ([], "") or isinstance(self.items, list) and len(self.items) > MAX_ITEMS:
            raise ValueError(f"items must have between 1 and {MAX_ITEMS} entries")
        texts = isinstance(self.items, str) or all(isinstance(item, str) for item in self.items or ())
        if texts != isinstance(self.query, str):
            raise ValueError("query and items must both be text, or both be token ids")
        if self.temperature not in (None, 1.0) and not self.apply_softmax:
            raise WrongField("temperature", "temperature has an effect with apply_softmax only")
        return self

    def _check_texts(self) -> ScoreBody:
        first, second = self.texts()
        if len(first) not in (1, len(second)):
            raise ValueError(f"text_1 has {len(first)} entries for the {len(second)} of text_2; give one, or as many")
        for name, texts in (("text_1", first), ("text_2", second)):
            if not all(map(str.strip, texts)):
                raise ValueError(f"{name} has a text that is empty")
        return self

    def prompts(self) -> QueryWithItems:
        """Return the text or token ids of query and item together, for each item."""
        items: Any = [self.items] if isinstance(self.items, str) else self.items
        return QueryWithItems(self.query, items, self.item_first)

    def texts(self) -> tuple[list[str], list[str]]:
        """Return the texts of both sides; the first may have a single one for all of the second."""
        first, second = (
            [value] if isinstance(value, str) else list(value or ()) for value in (self.text_1, self.text_2)
        )
        return first, second
