"""The texts of a model's tokens, and masks of tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

MASK_BITS = 32
"""Number of tokens in one word of a mask."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The text of each token of a model."""

    pieces: Sequence[bytes]
    """Bytes of each token; empty for special tokens and unused ids, which constraints on text never allow."""
    stop_ids: tuple[int, ...] = ()
    """Tokens that end an output."""
    special: Mapping[str, int] = field(default_factory=dict)
    """Special tokens by name, for constraints that name one."""
    encode: Callable[[str], Sequence[int]] | None = None
    """Tokenizes text as the model's tokenizer does; ``None`` where no component needs it."""

    @property
    def size(self) -> int:
        """Number of token ids, which is the width of the model's logits."""
        return len(self.pieces)

    @property
    def words(self) -> int:
        """Number of words in a row of a mask."""
        return -(-len(self.pieces) // MASK_BITS)
