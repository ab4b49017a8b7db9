"""Outputs with an unconstrained reasoning prefix: a grammar that applies only after the prefix.

The end of the prefix is recognised by tokens. If all tokens of an end are text, the text counts, however it is split
into tokens; a token that ends the prefix and continues with anything but white space is never allowed, because it could
break the constraint.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ordered
from functools import lru_cache
from itertools import chain

import torch
from torch import Tensor

from sglang_plug import Grammar, ReasoningPrefix, RequestError, Vocabulary
from sglang_plug_backends.grammars.token_mask import MASK_BITS, word_and_bit

ROWS = 256
"""Number of cached masks."""
BLANKS = b" \t\r\n"
Texts = tuple[bytes, ...]


def check_prefix(prefix: ReasoningPrefix, vocab_size: int) -> None:
    """Raise ``RequestError`` for a prefix that nothing ends, and for a token id that is not in the vocabulary."""
    if not prefix.ends or not all(prefix.ends):
        raise RequestError("a reasoning prefix needs an end marker")
    tokens = [*chain.from_iterable(prefix.ends), *prefix.opening]
    if not (0 <= min(tokens) and max(tokens) < vocab_size):
        raise RequestError(f"a token id in reasoning_prefix is not in the vocabulary of {vocab_size} tokens")


class EndMarkers:
    """The ends of reasoning prefixes in one vocabulary, and masks of the tokens allowed in prefixes. Thread-safe."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._rows: Callable[[tuple[int, ...], Texts, Texts], Tensor] = lru_cache(ROWS)(self._row)

    def texts(self, reasoning_prefix: ReasoningPrefix) -> Texts:
        """Return the ends that consist of text."""
        return tuple(b"".join(self._pieces(run)) for run in reasoning_prefix.ends if all(self._pieces(run)))

    def runs(self, reasoning_prefix: ReasoningPrefix) -> list[tuple[int, ...]]:
        """Return the ends that contain special tokens."""
        return [run for run in reasoning_prefix.ends if not all(self._pieces(run))]

    def row(self, stops: tuple[int, ...], texts: Texts, remainders: Texts) -> Tensor:
        """Return a mask, int32 ``[words]``, of every token except ``stops`` and those that overshoot."""
        return self._rows(stops, texts, remainders)

    def _row(self, stops: tuple[int, ...], texts: Texts, remainders: Texts) -> Tensor:
        pieces = self.vocabulary.pieces
        suspects = {token for text in texts for token, piece in enumerate(pieces) if text in piece}
        suspects |= {
            token for remainder in remainders for token, piece in enumerate(pieces) if piece.startswith(remainder)
        }
        forbidden = [token for token in suspects if overshoots(pieces[token], texts, remainders)]
        allowed = torch.zeros(self.vocabulary.words * MASK_BITS, dtype=torch.bool)
        allowed[: self.vocabulary.size] = True
        allowed[torch.tensor([*stops, *forbidden], dtype=torch.int64)] = False
        bits = allowed.view(-1, MASK_BITS).to(torch.int64) << torch.arange(MASK_BITS)
        return bits.sum(1).to(torch.int32)

    def _pieces(self, run: Ordered[int]) -> list[bytes]:
        return [self.vocabulary.pieces[token] for token in run]


def overshoots(piece: bytes, texts: Texts, remainders: Texts) -> bool:
    """Report whether ``piece`` continues with more than white space after one of ``texts`` or of ``remainders``.

    ``remainders`` are the missing parts of ends that have begun.
    """
    if any(piece.startswith(remainder) and piece[len(remainder) :].strip(BLANKS) for remainder in remainders):
        return True
    return any(text in piece and piece.partition(text)[2].strip(BLANKS) for text in texts)


class DeferredConstraint(Grammar):
    """Applies another grammar after the reasoning prefix; before that, allows everything but the end of the output.

    If the prefix is optional, the output may begin with the prefix or with the constrained part.
    """

    def __init__(
        self, grammar: Grammar, reasoning_prefix: ReasoningPrefix, markers: EndMarkers, stop_ids: Ordered[int]
    ) -> None:
        self._grammar, self._markers = grammar, markers
        self._opening, self._runs, self._texts = (
            reasoning_prefix.opening,
            markers.runs(reasoning_prefix),
            markers.texts(reasoning_prefix),
        )
        pieces, own = markers.vocabulary.pieces, markers.vocabulary.stop_ids
        self._stops = tuple(sorted({*own, *(token for token in stop_ids if not pieces[token])}))
        self._tokens: list[int] = []
        self._over: int | None = None
        self._accepted = 0
        self._is_direct = bool(self._opening)

    @property
    def enforced(self) -> Grammar:
        """The grammar of the part after the reasoning prefix."""
        return self._grammar

    def fill(self, mask: Tensor, row: int) -> None:
        if self._over is not None:
            self._grammar.fill(mask, row)
        elif self._is_inside:
            mask[row] = self._markers.row(self._stops, self._texts, self._remainders(self._tail()))
        else:
            if self._is_direct:
                self._grammar.fill(mask, row)
            else:
                mask[row] = 0
            token = self._opening[len(self._tokens)]
            word, bit = word_and_bit(token)
            mask[row, word] |= bit

    def accept(self, token: int) -> bool:
        if not 0 <= token < self._markers.vocabulary.size:
            return False
        if self._over is None and self._is_inside:
            return self._accept_inside(token)
        if self._over is None:
            return self._accept_first(token)
        if not self._grammar.accept(token):
            return False
        self._take(token, accepted=True)
        return True

    def rollback(self, count: int) -> None:
        if not 0 <= count <= len(self._tokens):
            raise ValueError(f"cannot take back {count} of {len(self._tokens)} tokens")
        kept = len(self._tokens) - count
        if self._over is not None and kept >= self._over:
            self._grammar.rollback(count)
            self._accepted -= count
            del self._tokens[kept:]
            return
        tokens = self._tokens[:kept]
        self._grammar.rollback(self._accepted)
        self._tokens, self._over, self._accepted, self._is_direct = [], None, 0, bool(self._opening)
        for token in tokens:
            self.accept(token)

    @property
    def may_end(self) -> bool:
        return self._leads and self._grammar.may_end

    @property
    def ended(self) -> bool:
        return self._over is not None and self._grammar.ended

    def forced(self) -> bytes:
        return self._grammar.forced() if self._over is not None else b""

    @property
    def _is_inside(self) -> bool:
        return len(self._tokens) >= len(self._opening)

    @property
    def _leads(self) -> bool:
        """True if the other grammar has accepted the whole output, or all of it after the prefix."""
        return self._over is not None or (self._is_direct and not self._is_inside)

    def _take(self, token: int, *, accepted: bool) -> None:
        self._tokens.append(token)
        self._accepted += accepted

    def _accept_first(self, token: int) -> bool:
        """Accept a token of the opening, or of an output without prefix; it counts as both while it may be either."""
        opens = token == self._opening[len(self._tokens)]
        direct = self._is_direct and self._grammar.accept(token)
        if not opens and not direct:
            return False
        self._take(token, accepted=direct)
        self._is_direct = direct
        if not opens:
            self._over = len(self._tokens)
        elif self._is_inside:
            self._grammar.rollback(self._accepted)
            self._accepted, self._is_direct = 0, False
        return True

    def _accept_inside(self, token: int) -> bool:
        piece, tail = self._markers.vocabulary.pieces[token], self._tail()
        if token in self._stops or overshoots(piece, self._texts, self._remainders(tail)):
            return False
        self._take(token, accepted=False)
        if any(text in tail + piece for text in self._texts) or any(map(self._ends_with, self._runs)):
            self._over = len(self._tokens)
        return True

    def _ends_with(self, run: tuple[int, ...]) -> bool:
        inside = len(self._tokens) - len(self._opening)
        return inside >= len(run) and tuple(self._tokens[-len(run) :]) == run

    def _tail(self) -> bytes:
        """Return the text at the end of the prefix so far that may be the beginning of its end."""
        longest = max(map(len, self._texts), default=0)
        tail = b""
        for position in range(len(self._tokens) - 1, len(self._opening) - 1, -1):
            piece = self._markers.vocabulary.pieces[self._tokens[position]]
            tail = piece + tail
            if not piece or len(tail) >= longest:
                break
        return tail

    def _remainders(self, tail: bytes) -> Texts:
        """Return the missing part of each end that may begin with ``tail``'s end."""
        texts = self._texts
        return tuple(text[count:] for text in texts for count in range(1, len(text)) if tail.endswith(text[:count]))
