"""Calls of the grammars of a step: filling token masks, and advancing by the sampled tokens.

Slow grammars are called in threads, where a call can be abandoned, and their masks are filled in parallel with the
forward pass. Grammars that have been quick so far are called directly, because a thread would cost more; on an
asynchronous device these calls run in parallel with the forward pass, too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor

from sglang_plug.contracts.request import Finish, RequestError
from sglang_plug.contracts.text.grammar import MASK_BITS, Grammar
from sglang_plug.engine.processes.guarded_calls import Threads
from sglang_plug.engine.sampling.masks import Allowed, word_and_bit
from sglang_plug.engine.scheduling.sequence import Sequence
from sglang_plug.system.library_panics import is_error

from .forced_tokens import CONTEXT
from .reasoning_prefix import DeferredConstraint
from .rejection import RemainingTokens

PATIENCE = 2.0
"""Seconds that one call may take before its request is given up."""
QUICK, QUICK_BY_CLOCK = 0.001, 0.01
"""Seconds of computing, and by the clock, within which a call of a grammar counts as quick."""
BUDGET, BUDGET_PER_TOKEN = 2.0, 0.05
"""Seconds of computing in its grammar that one output may use: in total, plus this much per token."""
TOO_SLOW = "following the output takes its grammar too long: it is too ambiguous; simplify it"
Filled = Literal[True]
"""The result of a call that filled a mask."""
FILLED: Filled = True
NOTHING_ALLOWED = "no token of the vocabulary can continue the output under its constraint"


@dataclass(frozen=True, slots=True)
class GrammarResult:
    """A grammar's result for a sampled token."""

    finish: Finish | None = None
    """Set if the output ends with the token."""
    error: RequestError | None = None
    forced: tuple[int, ...] = ()
    """Forced tokens after it, which the grammar has accepted."""
    rejected: bool = False
    """True if the token is rejected: unless the output ends, another one is sampled in its place."""


NOTHING_MORE = GrammarResult()


class Filling:
    """The masks of a batch while they are being filled.

    Args:
        sequences: the sequences of the batch.
        rows: indices of the sequences that have grammars.
        vocab_words: words in a row of a mask.
        threads: call the grammars that are not quick.
        guarded: see ``Grammars``.
    """

    def __init__(
        self,
        sequences: Ordered[Sequence],
        rows: list[int],
        vocab_words: int,
        threads: Threads,
        *,
        guarded: bool = True,
    ) -> None:
        self._sequences, self._rows, self._guarded = sequences, rows, guarded
        with torch.inference_mode(False):  # other threads write to it
            self._mask = torch.zeros(len(rows), vocab_words, dtype=torch.int32)
        self._quick = [place for place, row in enumerate(rows) if sequences[row].grammar_quick]
        self._others = [place for place, row in enumerate(rows) if not sequences[row].grammar_quick]
        self._outcomes: dict[int, RequestError | Filled | None] = {}
        self._calls = threads.begin([partial(self._fill, place) for place in self._others])

    def fill_quick(self) -> None:
        """Fill the masks of quick grammars."""
        self._outcomes |= {place: self._fill(place) for place in self._quick}
        self._quick = []

    def result(self) -> Allowed:
        """Wait for all masks and return them."""
        self.fill_quick()
        self._outcomes |= zip(self._others, self._calls.results(), strict=True)
        errors = {}
        for place, outcome in self._outcomes.items():
            row = self._rows[place]
            if outcome is None:
                self._sequences[row].grammar_quick = False
            if outcome is not FILLED:
                errors[row] = RequestError(TOO_SLOW) if outcome is None else outcome
        mask = self._mask
        if errors:
            mask = mask.clone()  # an abandoned call may still write to it
            mask[[place for place, row in enumerate(self._rows) if row in errors]] = 0
        return Allowed(self._rows, mask, errors)

    def _fill(self, place: int) -> RequestError | Filled:
        return _fill(self._sequences[self._rows[place]], self._mask, place, guarded=self._guarded)


class Grammars:
    """Calls the grammars of a step.

    Args:
        vocab_size: width of the logits.
        patience: seconds that one call may take.
        jump: look for forced tokens (jump-forward decoding).
        guarded: True if a ``GrammarGuard`` interrupts direct calls that hang; otherwise all calls are made in threads.
    """

    def __init__(self, vocab_size: int, *, patience: float = PATIENCE, jump: bool = True, guarded: bool = True) -> None:
        self._words, self.guarded = -(-vocab_size // MASK_BITS), guarded
        self._threads = Threads(patience)
        self._follow = partial(_follow, jump=jump, words=self._words)
        self._jump = jump

    def open(self, sequences: Ordered[Sequence]) -> dict[int, GrammarResult]:
        """Advance the grammars of new outputs by the tokens forced at the beginning; return the results by index."""
        places = [place for place, one in enumerate(sequences) if one.grammar is not None] if self._jump else []
        verdicts = self._threads.begin([partial(_open, sequences[place]) for place in places]).results()
        return {place: one or _too_slow() for place, one in zip(places, verdicts, strict=True)}

    def start(self, sequences: Ordered[Sequence], *, asynchronous: bool = False) -> Filling | None:
        """Begin to fill the masks of a batch; ``None`` if no row has a grammar.

        ``asynchronous``: the forward pass will be running when the result is requested, so quick masks wait for that.
        """
        rows = [row for row, one in enumerate(sequences) if one.grammar is not None]
        if not rows:
            return None
        filling = Filling(sequences, rows, self._words, self._threads, guarded=self.guarded)
        if not asynchronous:
            filling.fill_quick()
        return filling

    def follow(self, sequences: Ordered[Sequence], tokens: Ordered[int]) -> dict[int, GrammarResult]:
        """Advance the grammars by ``tokens``, ignoring negative ones; return the results by row."""
        rows = [row for row, one in enumerate(sequences) if one.grammar is not None and tokens[row] >= 0]
        if not rows:
            return {}
        slow = [row for row in rows if not sequences[row].grammar_quick]
        calls = self._threads.begin([partial(self._follow, sequences[row], tokens[row]) for row in slow])
        results = {row: self._follow(sequences[row], tokens[row]) for row in rows if sequences[row].grammar_quick}
        verdicts = calls.results()
        return results | {row: one or _too_slow() for row, one in zip(slow, verdicts, strict=True)}


class GrammarTimeout(BaseException):
    """Raised into a grammar that the engine calls directly and that does not return."""


@dataclass(frozen=True, slots=True)
class Asking:
    """A call of a grammar in progress."""

    sequence: Sequence
    seconds: float
    """Seconds since the call began."""

    def __str__(self) -> str:
        kind = type(self.sequence.grammar)
        return f"the grammar of request {self.sequence.request.id!r} ({kind.__module__}.{kind.__qualname__})"


def asking(frame: FrameType | None) -> Asking | None:
    """Return the grammar call of the thread with the innermost ``frame``; ``None`` if it is in no grammar."""
    inner = None
    while frame is not None:
        if inner is not None and frame.f_code in (_fill.__code__, _follow.__code__):
            asked = frame.f_locals.get("asked")
            return None if asked is None else Asking(frame.f_locals["sequence"], time.monotonic() - asked.begun)
        inner, frame = frame, frame.f_back
    return None


def _too_slow() -> GrammarResult:
    return GrammarResult(error=RequestError(TOO_SLOW))


def _failed(grammar: Grammar, error: BaseException) -> RequestError:
    """Return a server error that names the class of the failing grammar."""
    kind = type(grammar.enforced if isinstance(grammar, DeferredConstraint) else grammar)
    text = f"the grammar failed: {type(error).__name__}: {error} (in {kind.__module__}.{kind.__qualname__})"
    return RequestError(text, 500)


def _fill(sequence: Sequence, mask: Tensor, place: int, *, guarded: bool) -> RequestError | Filled:
    """Fill one row; return ``FILLED`` or the error."""
    grammar = sequence.grammar
    assert grammar is not None
    asked = Asked()
    try:
        if sequence.remaining_tokens is None:
            grammar.fill(mask, place)
        else:
            mask[place] = sequence.remaining_tokens.allowed
        row = mask[place].numpy()
        _allow_stops(sequence, grammar, row)
        if asked.too_much(sequence):
            return RequestError(TOO_SLOW)
        if sequence.grammar_quick is None:
            sequence.grammar_quick = guarded
        return FILLED if row.any() else RequestError(NOTHING_ALLOWED)
    except GrammarTimeout:
        return RequestError(TOO_SLOW)
    except BaseException as error:
        if not is_error(error):
            raise
        return _failed(grammar, error)


def _follow(sequence: Sequence, token: int, *, jump: bool, words: int) -> GrammarResult:
    """Advance a grammar by ``token``; with ``jump``, also by the tokens forced after it.

    A stop token counts as content unless the output may end there. Log-probabilities of forced tokens, if requested,
    are computed with the token after them. ``words``: the width of a mask.
    """
    grammar = sequence.grammar
    assert grammar is not None
    room = sequence.limit - len(sequence.tokens) - 1
    if room < 0:  # there is no room for the token
        return NOTHING_MORE
    asked = Asked()
    forced: tuple[int, ...] = ()
    try:
        if token in sequence.request.params.stop_token_ids and grammar.may_end:
            return GrammarResult(Finish("stop", matched=token))
        if not grammar.accept(token):
            result = _rejected(sequence, grammar, token, words)
            return _too_slow() if asked.too_much(sequence) else result
        sequence.remaining_tokens = None
        ended = grammar.ended
        if jump and room and not ended:
            forced = _forced(sequence, room, sampled=(token,), whole=sequence.request.logprobs is None)
            ended = bool(forced) and grammar.ended
        if asked.too_much(sequence) and not ended:
            return _too_slow()
        return GrammarResult(Finish("stop") if ended else None, None, forced) if ended or forced else NOTHING_MORE
    except GrammarTimeout:
        return _too_slow()
    except BaseException as error:
        if not is_error(error):
            raise
        return GrammarResult(error=_failed(grammar, error))


def _rejected(sequence: Sequence, grammar: Grammar, token: int, words: int) -> GrammarResult:
    """Handle a ``token`` that the mask of ``grammar`` allowed and that ``grammar`` then rejects."""
    if sequence.remaining_tokens is None:
        sequence.remaining_tokens = RemainingTokens.of(grammar, words)
    if sequence.remaining_tokens.remove(token, grammar):
        return GrammarResult(rejected=True)
    if grammar.may_end:
        return GrammarResult(Finish("stop"), rejected=True)
    return GrammarResult(error=_failed(grammar, ValueError("it accepts none of the tokens that its mask allows")))


def _open(sequence: Sequence) -> GrammarResult:
    """Return the tokens forced at the beginning of an output, except the last, which is left to a step."""
    grammar, asked = sequence.grammar, Asked()
    assert grammar is not None
    try:
        forced = _forced(sequence, sequence.limit - len(sequence.tokens), sampled=(), whole=False)
    except BaseException as error:
        if not is_error(error):
            raise
        return GrammarResult(error=_failed(grammar, error))
    return _too_slow() if asked.too_much(sequence) else GrammarResult(forced=forced)


def _forced(sequence: Sequence, room: int, *, sampled: tuple[int, ...], whole: bool) -> tuple[int, ...]:
    """Return the tokens forced after ``sampled``, at most ``room``, or one less unless ``whole``; accept them.

    Tokens that a tokenizer may merge with following text are left out, unless the output ends there. There are none if
    the grammar rejects a token of the text that it forces: the model then generates that text.
    """
    grammar, forced_tokenizer = sequence.grammar, sequence.forced_tokenizer
    if grammar is None or forced_tokenizer is None:
        return ()
    text = grammar.forced()
    if not text:
        return ()
    before = sequence.tokens[max(sequence.prompt_len, len(sequence.tokens) - CONTEXT) :]
    cut = forced_tokenizer.cut((*before, *sampled), text)
    taken = 0
    for token in cut.whole[:room]:
        if not grammar.accept(token):
            grammar.rollback(taken)
            return ()
        taken += 1
    ends = taken == len(cut.whole) and grammar.ended
    most = room if whole else min(room, len(cut.whole)) - 1
    kept = max(0, min(taken if ends else cut.stable, most))
    if taken > kept:
        grammar.rollback(taken - kept)
    return cut.whole[:kept]


class Asked:
    """The start of a call of a grammar, by the thread's own time and by the clock."""

    def __init__(self) -> None:
        self._computed, self.begun = time.thread_time(), time.monotonic()

    def too_much(self, sequence: Sequence) -> bool:
        """Add the time since the start to the sequence's; return True if the output has used too much."""
        computed = time.thread_time() - self._computed
        sequence.grammar_seconds += computed
        if computed > QUICK or time.monotonic() - self.begun > QUICK_BY_CLOCK:
            sequence.grammar_quick = False
        return sequence.grammar_seconds > BUDGET + BUDGET_PER_TOKEN * sequence.generated


def _allow_stops(sequence: Sequence, grammar: Grammar, row: Any) -> None:
    """Allow stop tokens where the output may end, unless that is too early and another token is allowed.

    ``row``: the mask's row, int32 ``[words]``, as a numpy array, whose elements are faster to access.
    """
    params = sequence.request.params
    if not params.stop_token_ids:
        return
    if sequence.generated < params.min_new_tokens:
        before = row.copy()
        for token in params.stop_token_ids:
            word, bit = word_and_bit(token)
            row[word] &= ~bit
        if row.any():
            return
        row[:] = before
    if grammar.may_end:
        for token in params.stop_token_ids:
            word, bit = word_and_bit(token)
            row[word] |= bit
