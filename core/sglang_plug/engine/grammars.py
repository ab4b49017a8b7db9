"""What the grammars of a step are asked: which tokens may come, and what the sampled one leads to.

Those that take long are asked in threads, where they can be given up, and masks in parallel with the forward pass.
Those that have answered quickly so far are asked at once: handing them over would cost more. On a device that works on
its own that is in parallel, too.
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

from sglang_plug.grammar import MASK_BITS, Grammar
from sglang_plug.request import Finish, RequestError

from .cutting import CONTEXT
from .masks import Allowed, word_and_bit
from .patience import Threads
from .sequence import Sequence

PATIENCE = 2.0
"""Seconds that one question may take before its request is given up."""
QUICK, QUICK_BY_CLOCK = 0.001, 0.01
"""Seconds of computing, and by the clock, within which a grammar answers quickly."""
BUDGET, BUDGET_PER_TOKEN = 2.0, 0.05
"""Seconds of computing that one output may ask of its grammar: at once, and on average."""
TOO_SLOW = "following the output takes its grammar too long: it is too ambiguous; simplify it"
Filled = Literal[True]
"""A mask is filled."""
FILLED: Filled = True
NOTHING_ALLOWED = "no token of the vocabulary can continue the output under its constraint"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a grammar says of a sampled token."""

    finish: Finish | None = None
    """Set if the output ends with it."""
    error: RequestError | None = None
    forced: tuple[int, ...] = ()
    """Tokens that must follow, which the grammar has accepted."""


NOTHING_MORE = Verdict()


class Filling:
    """Masks that are being filled.

    Args:
        sequences: of the batch.
        rows: those of them that have grammars.
        vocab_words: words in a row of a mask.
        threads: where grammars are asked that are not quick.
        guarded: as of ``Grammars``.
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
        with torch.inference_mode(False):  # threads of their own write to it
            self._mask = torch.zeros(len(rows), vocab_words, dtype=torch.int32)
        self._quick = [place for place, row in enumerate(rows) if sequences[row].grammar_quick]
        self._others = [place for place, row in enumerate(rows) if not sequences[row].grammar_quick]
        self._found: dict[int, RequestError | Filled | None] = {}
        self._calls = threads.begin([partial(self._fill, place) for place in self._others])

    def fill_quick(self) -> None:
        """Fill the masks that are quickly filled."""
        self._found |= {place: self._fill(place) for place in self._quick}
        self._quick = []

    def result(self) -> Allowed:
        """Wait for all of them."""
        self.fill_quick()
        self._found |= zip(self._others, self._calls.results(), strict=True)
        errors = {}
        for place, found in self._found.items():
            row = self._rows[place]
            if found is None:
                self._sequences[row].grammar_quick = False
            if found is not FILLED:
                errors[row] = RequestError(TOO_SLOW) if found is None else found
        mask = self._mask
        if errors:
            mask = mask.clone()  # a call left behind may still write to it
            mask[[place for place, row in enumerate(self._rows) if row in errors]] = 0
        return Allowed(self._rows, mask, errors)

    def _fill(self, place: int) -> RequestError | Filled:
        return _fill(self._sequences[self._rows[place]], self._mask, place, guarded=self._guarded)


class Grammars:
    """Asks the grammars of a step.

    Args:
        vocab_size: width of the logits.
        patience: seconds that one question may take.
        jump: look for tokens that must follow.
        guarded: somebody ends what is asked here and not answered (``GrammarGuard``); if not, threads are asked always.
    """

    def __init__(self, vocab_size: int, *, patience: float = PATIENCE, jump: bool = True, guarded: bool = True) -> None:
        self._words, self.guarded = -(-vocab_size // MASK_BITS), guarded
        self._threads = Threads(patience)
        self._follow = partial(_follow, jump=jump)
        self._jump = jump

    def open(self, sequences: Ordered[Sequence]) -> dict[int, Verdict]:
        """Advance the grammars of new outputs by the tokens that these begin with; place -> what came of it."""
        places = [place for place, one in enumerate(sequences) if one.grammar is not None] if self._jump else []
        verdicts = self._threads.begin([partial(_open, sequences[place]) for place in places]).results()
        return {place: one or _too_slow() for place, one in zip(places, verdicts, strict=True)}

    def start(self, sequences: Ordered[Sequence], *, asynchronous: bool = False) -> Filling | None:
        """Begin to fill the masks of a batch; ``None`` if no row has a grammar.

        ``asynchronous``: the forward pass will be under way when the result is asked for, so quick masks have time.
        """
        rows = [row for row, one in enumerate(sequences) if one.grammar is not None]
        if not rows:
            return None
        filling = Filling(sequences, rows, self._words, self._threads, guarded=self.guarded)
        if not asynchronous:
            filling.fill_quick()
        return filling

    def follow(self, sequences: Ordered[Sequence], tokens: Ordered[int]) -> dict[int, Verdict]:
        """Advance the grammars by ``tokens``, of which negative ones are none; row -> what came of it."""
        rows = [row for row, one in enumerate(sequences) if one.grammar is not None and tokens[row] >= 0]
        if not rows:
            return {}
        slow = [row for row in rows if not sequences[row].grammar_quick]
        calls = self._threads.begin([partial(self._follow, sequences[row], tokens[row]) for row in slow])
        found = {row: self._follow(sequences[row], tokens[row]) for row in rows if sequences[row].grammar_quick}
        verdicts = calls.results()
        return found | {row: one or _too_slow() for row, one in zip(slow, verdicts, strict=True)}


class GrammarTimeout(BaseException):
    """Raised into a grammar that the engine asks itself and that does not answer."""


@dataclass(frozen=True, slots=True)
class Asking:
    """A question to a grammar that is being answered."""

    sequence: Sequence
    seconds: float
    """Since it was asked."""

    def __str__(self) -> str:
        kind = type(self.sequence.grammar)
        return f"the grammar of request {self.sequence.request.id!r} ({kind.__module__}.{kind.__qualname__})"


def asking(frame: FrameType | None) -> Asking | None:
    """What is asked where ``frame`` is the innermost one of a thread; ``None`` if that is no grammar."""
    inner = None
    while frame is not None:
        if inner is not None and frame.f_code in (_fill.__code__, _follow.__code__):
            asked = frame.f_locals.get("asked")
            return None if asked is None else Asking(frame.f_locals["sequence"], time.monotonic() - asked.begun)
        inner, frame = frame, frame.f_back
    return None


def _too_slow() -> Verdict:
    return Verdict(error=RequestError(TOO_SLOW))


def _failed(grammar: Grammar, error: Exception) -> RequestError:
    """Not the request's fault; whose code it is, is told."""
    kind = type(grammar)
    text = f"the grammar failed: {type(error).__name__}: {error} (in {kind.__module__}.{kind.__qualname__})"
    return RequestError(text, 500)


def _fill(sequence: Sequence, mask: Tensor, place: int, *, guarded: bool) -> RequestError | Filled:
    """Fill one row; returns what is wrong, if anything."""
    grammar = sequence.grammar
    assert grammar is not None
    asked = Asked()
    try:
        grammar.fill(mask, place)
        row = mask[place].numpy()
        _allow_stops(sequence, grammar, row)
        if asked.too_much(sequence):
            return RequestError(TOO_SLOW)
        if sequence.grammar_quick is None:
            sequence.grammar_quick = guarded
        return FILLED if row.any() else RequestError(NOTHING_ALLOWED)
    except GrammarTimeout:
        return RequestError(TOO_SLOW)
    except Exception as error:
        return _failed(grammar, error)


def _follow(sequence: Sequence, token: int, *, jump: bool) -> Verdict:
    """A stop token is content unless the output may end there. With ``jump``: and then what must come next.

    Log-probabilities of what must come next are found with the token after it, if they are asked for.
    """
    grammar = sequence.grammar
    assert grammar is not None
    room = sequence.limit - len(sequence.tokens) - 1
    if room < 0:  # the token is not taken
        return NOTHING_MORE
    asked = Asked()
    forced: tuple[int, ...] = ()
    try:
        if token in sequence.request.params.stop_token_ids and grammar.may_end:
            return Verdict(Finish("stop", matched=token))
        if not grammar.accept(token):
            return Verdict(
                error=_failed(grammar, ValueError(f"it does not accept token {token}, which it had allowed"))
            )
        ended = grammar.ended
        if jump and room and not ended:
            forced = _forced(sequence, room, sampled=(token,), whole=sequence.request.logprobs is None)
            ended = bool(forced) and grammar.ended
        if asked.too_much(sequence) and not ended:
            return _too_slow()
        return Verdict(Finish("stop") if ended else None, None, forced) if ended or forced else NOTHING_MORE
    except GrammarTimeout:
        return _too_slow()
    except Exception as error:
        return Verdict(error=_failed(grammar, error))


def _open(sequence: Sequence) -> Verdict:
    """What the output begins with; its last token is left to a step, so that there is one."""
    grammar, asked = sequence.grammar, Asked()
    assert grammar is not None
    try:
        forced = _forced(sequence, sequence.limit - len(sequence.tokens), sampled=(), whole=False)
    except Exception as error:
        return Verdict(error=_failed(grammar, error))
    return _too_slow() if asked.too_much(sequence) else Verdict(forced=forced)


def _forced(sequence: Sequence, room: int, *, sampled: tuple[int, ...], whole: bool) -> tuple[int, ...]:
    """Tokens that must follow ``sampled``, at most ``room``, or one less unless ``whole``; the grammar accepts them.

    Those that a tokenizer may join with what follows are left out, except where nothing does.
    """
    grammar, cutter = sequence.grammar, sequence.cutter
    if grammar is None or cutter is None:
        return ()
    text = grammar.forced()
    if not text:
        return ()
    before = sequence.tokens[max(sequence.prompt_len, len(sequence.tokens) - CONTEXT) :]
    cut = cutter.cut((*before, *sampled), text)
    taken = 0
    for token in cut.whole[:room]:
        if not grammar.accept(token):
            raise ValueError(f"it does not accept token {token}, which it forces")
        taken += 1
    ends = taken == len(cut.whole) and grammar.ended
    most = room if whole else min(room, len(cut.whole)) - 1
    kept = max(0, min(taken if ends else cut.stable, most))
    if taken > kept:
        grammar.rollback(taken - kept)
    return cut.whole[:kept]


class Asked:
    """When a grammar was asked, by the thread's own time and by the clock."""

    def __init__(self) -> None:
        self._computed, self.begun = time.thread_time(), time.monotonic()

    def too_much(self, sequence: Sequence) -> bool:
        """Count the time since; True once the output has asked too much."""
        computed = time.thread_time() - self._computed
        sequence.grammar_seconds += computed
        if computed > QUICK or time.monotonic() - self.begun > QUICK_BY_CLOCK:
            sequence.grammar_quick = False
        return sequence.grammar_seconds > BUDGET + BUDGET_PER_TOKEN * sequence.generated


def _allow_stops(sequence: Sequence, grammar: Grammar, row: Any) -> None:
    """Stop tokens may come where the output may end, unless that is too early and something else may come.

    ``row``: the mask's, int32 ``[words]``, as an array of numpy, whose single numbers are faster to get at.
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
