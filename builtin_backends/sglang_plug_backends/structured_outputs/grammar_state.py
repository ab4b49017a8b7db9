"""The grammar of one output, and what is known of it."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_plug import Grammar

from .forced_tokens import ForcedTokenizer
from .rejection import RemainingTokens


@dataclass(slots=True, eq=False)
class GrammarState:
    """The grammar of a sequence, in ``sequence.extras``."""

    grammar: Grammar
    """The grammar, which has accepted every generated token; a retraction does not change it."""
    forced_tokenizer: ForcedTokenizer | None = None
    """Splits the text that the grammar forces into tokens; ``None``: nothing is forced."""
    seconds: float = 0.0
    """Seconds spent in calls of the grammar."""
    quick: bool | None = None
    """True if the grammar has filled a mask and every call of it was quick; ``False`` for good after a slow call."""
    remaining_tokens: RemainingTokens | None = None
    """Tokens that may come next, once the grammar has rejected a token at this position that its mask had allowed."""
