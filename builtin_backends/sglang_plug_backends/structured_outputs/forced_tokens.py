"""Splits forced text into the tokens that the tokenizer would make of the whole output.

A tokenizer may merge the beginning of a text with the text before it, and its end with the text after it. So the text
is tokenized together with the output's last tokens, and is only used if a token begins at its start; and only those of
its tokens are used that stay the same whatever follows.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, takewhile

from sglang_plug import Vocabulary

MAX_BYTES = 512
"""Largest number of bytes of a text that are split at once."""
CONTEXT = 4
"""Number of tokens before a text that are tokenized with it."""
INITIAL_CONTEXTS = (b"", b"\n")
"""Contexts tried before a text at the beginning of an output; some tokenizers add a blank at the start of a text."""
CONTINUATIONS = ("", "a", "Z", "0", " ", "\n", '"', "}", "]", ",", ":", "é")
"""Texts that may follow, one of each kind that tokenizers distinguish."""
WORD_AT_END = re.compile(r"\w+$")
CACHED_TEXTS = 4096
"""Number of texts whose tokens are cached."""


@dataclass(frozen=True, slots=True)
class JumpForwardTokens:
    """The tokens of a forced text."""

    tokens: tuple[int, ...] = ()
    """All tokens of the text, if nothing follows."""
    stable_count: int = 0
    """Number of leading tokens that stay the same, whatever follows."""


class ForcedTokenizer:
    """Splits texts with one vocabulary. May be used by several threads at once."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._pieces = vocabulary.pieces
        self._encode = vocabulary.encode
        self._cached: Callable[[bytes, bytes], JumpForwardTokens] = lru_cache(CACHED_TEXTS)(self._tokenize)

    def tokenize(self, output: Ordered[int], text: bytes) -> JumpForwardTokens:
        """Split ``text`` after the tokens of ``output``; an incomplete character at its end is left out.

        Returns no tokens if the tokenizer would merge the beginning of ``text`` with the text before it.
        """
        if self._encode is None or not text:
            return JumpForwardTokens()
        return self._cached(self._context(output), text[:MAX_BYTES])

    def _context(self, output: Ordered[int]) -> bytes:
        """Return the bytes of the last tokens with text, without the rest of a character that began before."""
        pieces = (self._pieces[token] for token in reversed(output[-CONTEXT:]))
        context = b"".join(reversed(list(takewhile(bool, pieces))))
        return context.lstrip(bytes(range(0x80, 0xC0)))

    def _tokenize(self, context: bytes, text: bytes) -> JumpForwardTokens:
        for prefix in (context,) if context else INITIAL_CONTEXTS:
            try:
                decoder = codecs.getincrementaldecoder("utf-8")()
                whole = decoder.decode(prefix + text)
            except UnicodeDecodeError:
                return JumpForwardTokens()
            complete = whole.encode()[len(prefix) :]
            candidates = list(self._candidates(whole, complete)) if complete else []
            if candidates and candidates[0] is not None:
                return JumpForwardTokens(
                    tuple(candidates[0]),
                    min(_common_prefix_len(candidates), self._before_last(candidates[0], complete)),
                )
        return JumpForwardTokens()

    def _before_last(self, tokens: list[int], text: bytes) -> int:
        """Count the leading ``tokens`` before the last one and before a word at the end of ``text``."""
        kept = WORD_AT_END.sub("", text.decode(errors="surrogateescape"))  # it may begin within a character
        ends = accumulate(len(self._pieces[token]) for token in tokens[:-1])
        return sum(1 for end in ends if end <= len(kept.encode(errors="surrogateescape")))

    def _candidates(self, whole: str, text: bytes) -> Iterator[list[int] | None]:
        """Yield the tokens of ``text`` with each of ``CONTINUATIONS``, where ``whole`` ends with ``text``."""
        assert self._encode is not None
        for continuation in CONTINUATIONS:
            yield self._ending(list(self._encode(whole + continuation)), text + continuation.encode())

    def _ending(self, tokens: list[int], text: bytes) -> list[int] | None:
        """Return the last of ``tokens`` that are exactly ``text``; ``None`` if no token begins at its start."""
        start, missing = len(tokens), len(text)
        while missing > 0 and start > 0:
            start -= 1
            if tokens[start] >= len(self._pieces):  # the model has fewer tokens than the tokenizer
                return None
            missing -= len(self._pieces[tokens[start]])
        ending = tokens[start:]
        return ending if missing == 0 and b"".join(self._pieces[token] for token in ending) == text else None


def _common_prefix_len(candidates: Ordered[list[int] | None]) -> int:
    """Return the length of the common prefix of all candidates; 0 if the text cannot be split in one of them."""
    if any(candidate is None for candidate in candidates):
        return 0
    columns = zip(*(candidate for candidate in candidates if candidate is not None), strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
