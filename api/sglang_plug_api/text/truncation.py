"""Prompts that are cut to a number of tokens, as requests ask for with ``truncate_prompt_tokens``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sglang_plug import Tokenizer
from sglang_plug_api.protocol.base import Side

REPLACEMENT = "\ufffd"
"""Stands for the bytes of a character that was cut through."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """The number of tokens that a prompt is cut to, and the side that is cut."""

    max_tokens: int
    side: Side

    def cut(self, tokens: Sequence[int]) -> list[int]:
        """Return ``tokens`` without those that are too many."""
        beyond = len(tokens) - self.max_tokens
        if beyond <= 0:
            return list(tokens)
        return list(tokens[beyond:] if self.side == "left" else tokens[: self.max_tokens])

    def cut_text(self, tokenizer: Tokenizer, text: str) -> str:
        """Return ``text`` without what is beyond its first or last tokens."""
        tokens = tokenizer.encode(text, special=False)
        if len(tokens) <= self.max_tokens:
            return text
        return tokenizer.decode(self.cut(tokens)).strip(REPLACEMENT)

    def cut_between(self, tokens: Sequence[int], plain: Sequence[int]) -> list[int]:
        """Return ``tokens``, which are ``plain`` with special tokens around them, with ``plain`` cut to fit."""
        if len(tokens) <= self.max_tokens:
            return list(tokens)
        around = len(tokens) - len(plain)
        for first in range(around + 1) if 0 < around < self.max_tokens else ():
            if list(tokens[first : first + len(plain)]) == list(plain):
                inner = Truncation(self.max_tokens - around, self.side).cut(plain)
                return [*tokens[:first], *inner, *tokens[first + len(plain) :]]
        return self.cut(tokens)


def truncation_of(length: int | None, side: Side | None, *, longest: int, default: Side) -> Truncation | None:
    """Return the truncation that a request asks for; ``None`` if it asks for none.

    Args:
        length: ``truncate_prompt_tokens``; -1 stands for ``longest``.
        side: ``truncation_side``.
        longest: the maximum number of tokens that fit.
        default: the side for requests that name none.
    """
    if length is None:
        return None
    return Truncation(longest if length < 0 else length, side or default)
