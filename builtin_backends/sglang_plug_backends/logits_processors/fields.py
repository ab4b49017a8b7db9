"""Request fields of the built-in logits processors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

MAX_TOKENS = 1 << 20
TokenIds = Annotated[frozenset[Annotated[int, Meta(ge=0)]], Meta(min_length=1, max_length=MAX_TOKENS)]
"""Tokens of which a request may repeat some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedTokensFields:
    """The tokens that an output may consist of."""

    allowed_token_ids: TokenIds | None = None
