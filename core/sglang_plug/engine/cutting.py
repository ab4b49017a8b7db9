"""Text that must come next, cut into tokens so that they are what the tokenizer makes of the whole output.

A tokenizer may join the beginning of a text with what stands before it, and its end with what follows. So the text is
cut together with the output's last tokens, and counts only if a token begins where it does; and of its own tokens those
count that stay the same whatever comes next.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, takewhile

from sglang_plug.grammar import Vocabulary

MOST_BYTES = 512
"""Of a text, cut at once."""
CONTEXT = 4
"""Tokens before it that it is cut with."""
LEADS = (b"", b"\n")
"""What stands before a text at the beginning of an output. Some tokenizers add a blank to what begins a text."""
FOLLOWERS = ("", "a", "Z", "0", " ", "\n", '"', "}", "]", ",", ":", "é")
"""What may come after it, one of each kind that tokenizers tell apart."""
WORD_AT_END = re.compile(r"\w+$")
REMEMBERED = 4096
"""Texts whose tokens are remembered."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Tokens of a text."""

    whole: tuple[int, ...] = ()
    """All of it, if nothing follows."""
    stable: int = 0
    """How many of these stay, whatever follows."""


class Cutter:
    """Cuts texts with one vocabulary. May be used by several threads at once."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._pieces = vocabulary.pieces
        self._encode = vocabulary.encode
        self._cut: Callable[[bytes, bytes], Cut] = lru_cache(REMEMBERED)(self._look)

    def cut(self, output: Ordered[int], text: bytes) -> Cut:
        """Tokens of ``text`` behind the tokens of ``output``; an incomplete character at its end is left out.

        An empty cut if the tokenizer would join its beginning with what stands before it.
        """
        if self._encode is None or not text:
            return Cut()
        return self._cut(self._context(output), text[:MOST_BYTES])

    def _context(self, output: Ordered[int]) -> bytes:
        """Bytes of the last tokens, back to one without text; nothing of a character that began before."""
        pieces = (self._pieces[token] for token in reversed(output[-CONTEXT:]))
        found = b"".join(reversed(list(takewhile(bool, pieces))))
        return found.lstrip(bytes(range(0x80, 0xC0)))

    def _look(self, context: bytes, text: bytes) -> Cut:
        for lead in (context,) if context else LEADS:
            try:
                decoder = codecs.getincrementaldecoder("utf-8")()
                whole = decoder.decode(lead + text)
            except UnicodeDecodeError:
                return Cut()
            complete = whole.encode()[len(lead) :]
            ways = list(self._ways(whole, complete)) if complete else []
            if ways and ways[0] is not None:
                return Cut(tuple(ways[0]), min(_agreed(ways), self._before_last(ways[0], complete)))
        return Cut()

    def _before_last(self, tokens: list[int], text: bytes) -> int:
        """How many of ``tokens`` are neither the last nor part of a word that ``text`` ends with, and may go on."""
        kept = WORD_AT_END.sub("", text.decode(errors="surrogateescape"))  # it may begin within a character
        ends = accumulate(len(self._pieces[one]) for one in tokens[:-1])
        return sum(1 for end in ends if end <= len(kept.encode(errors="surrogateescape")))

    def _ways(self, whole: str, text: bytes) -> Iterator[list[int] | None]:
        """The tokens of ``text`` and of each follower, where ``whole`` ends with ``text``."""
        assert self._encode is not None
        for follower in FOLLOWERS:
            yield self._ending(list(self._encode(whole + follower)), text + follower.encode())

    def _ending(self, tokens: list[int], text: bytes) -> list[int] | None:
        """The last of ``tokens``, if they are exactly ``text``."""
        place, missing = len(tokens), len(text)
        while missing > 0 and place > 0:
            place -= 1
            if tokens[place] >= len(self._pieces):  # the model has fewer tokens than the tokenizer
                return None
            missing -= len(self._pieces[tokens[place]])
        found = tokens[place:]
        return found if missing == 0 and b"".join(self._pieces[one] for one in found) == text else None


def _agreed(ways: Ordered[list[int] | None]) -> int:
    """Length of the beginning that all have; 0 if the text cannot be cut in one of them."""
    if any(one is None for one in ways):
        return 0
    columns = zip(*(one for one in ways if one is not None), strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
