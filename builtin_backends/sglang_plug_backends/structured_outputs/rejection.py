"""Handles tokens that a grammar's mask allowed and that the grammar then rejected: others are sampled instead.

A mask may allow more than its grammar accepts, because of faults in libraries. The rejected token is removed from the
tokens allowed at its position, and the sequence computes that position again. The next token is a function of the seed,
the position and the number of rejections, so a seed gives the same output again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_plug import Grammar
from sglang_plug_backends.grammars.token_mask import MASK_BITS, word_and_bit

MAX_SAMPLED = 8
"""Rejections at one position after which every remaining token is tried with the grammar itself."""


@dataclass(slots=True)
class RemainingTokens:
    """Tokens allowed at the next position of one output, besides stop tokens, without the rejected ones."""

    allowed: Tensor
    """A mask, int32 ``[words]`` on the host, like one row of ``Grammar.fill``."""
    rejections: int = 0

    @classmethod
    def of(cls, grammar: Grammar, words: int) -> RemainingTokens:
        """Return the tokens that the grammar's own mask allows; ``words`` is the width of a mask."""
        with torch.inference_mode(False):  # other threads may write to it
            mask = torch.zeros(1, words, dtype=torch.int32)
        grammar.fill(mask, 0)
        return cls(mask[0])

    def remove(self, token: int, grammar: Grammar) -> bool:
        """Remove ``token``, which ``grammar`` rejected, from the mask; return False if no token is left.

        After several rejections, all other tokens that the grammar would reject are removed, too.
        """
        self._clear(token)
        self.rejections += 1
        if self.rejections == MAX_SAMPLED:
            for other in self._tokens():
                if grammar.accept(other):
                    grammar.rollback(1)
                else:
                    self._clear(other)
        return bool(self.allowed.any())

    def _clear(self, token: int) -> None:
        word, bit = word_and_bit(token)
        self.allowed[word] &= ~bit

    def _tokens(self) -> list[int]:
        bits = (self.allowed[:, None] >> torch.arange(MASK_BITS, dtype=torch.int32)) & 1
        tokens: list[int] = bits.flatten().nonzero()[:, 0].tolist()
        return tokens
