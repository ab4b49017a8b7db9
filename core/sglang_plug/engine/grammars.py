"""What the grammars of a step are asked, in threads: which tokens may come, and what the sampled one leads to."""

from __future__ import annotations

import time
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from sglang_plug.grammar import MASK_BITS, Grammar
from sglang_plug.request import Finish

from .cutting import CONTEXT
from .masks import Allowed
from .patience import Calls, Threads
from .sequence import Sequence

PATIENCE = 2.0
"""Seconds that one question may take before its request is given up."""
BUDGET, BUDGET_PER_TOKEN = 2.0, 0.05
"""Seconds of computing that one output may ask of its grammar: at once, and on average."""
TOO_SLOW = "following the output takes its grammar too long: it is too ambiguous; simplify it"
NOTHING_ALLOWED = "no token of the vocabulary can continue the output under its constraint"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a grammar says of a sampled token."""

    finish: Finish | None = None
    """Set if the output ends with it."""
    error: str | None = None
    forced: tuple[int, ...] = ()
    """Tokens that must follow, which the grammar has accepted."""


class Filling:
    """Masks that are being filled."""

    def __init__(self, rows: list[int], mask: Tensor, calls: Calls[str]) -> None:
        self._rows, self._mask, self._calls = rows, mask, calls

    def result(self) -> Allowed:
        """Wait for all of them."""
        errors = {}
        for row, message in zip(self._rows, self._calls.results(), strict=True):
            if message != "":
                errors[row] = TOO_SLOW if message is None else message
        mask = self._mask.clone() if errors else self._mask  # a call left behind may still write to it
        mask[[place for place, row in enumerate(self._rows) if row in errors]] = 0
        return Allowed(self._rows, mask, errors)


class Grammars:
    """Asks the grammars of a step.

    Args:
        vocab_size: width of the logits.
        patience: seconds that one question may take.
        jump: look for tokens that must follow.
    """

    def __init__(self, vocab_size: int, *, patience: float = PATIENCE, jump: bool = True) -> None:
        self._words = -(-vocab_size // MASK_BITS)
        self._threads = Threads(patience)
        self._follow = _follow_and_jump if jump else _follow
        self._jump = jump

    def open(self, sequences: Ordered[Sequence]) -> dict[int, Verdict]:
        """Advance the grammars of new outputs by the tokens that these begin with; place -> what came of it."""
        places = [place for place, one in enumerate(sequences) if one.grammar is not None] if self._jump else []
        verdicts = self._threads.begin([partial(_open, sequences[place]) for place in places]).results()
        return {place: one or Verdict(error=TOO_SLOW) for place, one in zip(places, verdicts, strict=True)}

    def start(self, sequences: Ordered[Sequence]) -> Filling | None:
        """Begin to fill the masks of a batch; ``None`` if no row has a grammar."""
        rows = [row for row, one in enumerate(sequences) if one.grammar is not None]
        if not rows:
            return None
        with torch.inference_mode(False):  # threads of their own write to it
            mask = torch.zeros(len(rows), self._words, dtype=torch.int32)
        calls = [partial(_fill, sequences[row], mask, place) for place, row in enumerate(rows)]
        return Filling(rows, mask, self._threads.begin(calls))

    def follow(self, sequences: Ordered[Sequence], tokens: Ordered[int]) -> dict[int, Verdict]:
        """Advance the grammars by ``tokens``, of which negative ones are none; row -> what came of it."""
        rows = [row for row, one in enumerate(sequences) if one.grammar is not None and tokens[row] >= 0]
        if not rows:
            return {}
        verdicts = self._threads.begin([partial(self._follow, sequences[row], tokens[row]) for row in rows]).results()
        return {row: one or Verdict(error=TOO_SLOW) for row, one in zip(rows, verdicts, strict=True)}


def _fill(sequence: Sequence, mask: Tensor, place: int) -> str:
    """Fill one row; returns what is wrong, if anything."""
    grammar = sequence.grammar
    assert grammar is not None
    started = time.thread_time()
    try:
        grammar.fill(mask, place)
        _allow_stops(sequence, grammar, mask[place])
    except Exception as error:
        return f"the grammar failed: {type(error).__name__}: {error}"
    if _is_spent(sequence, started):
        return TOO_SLOW
    return "" if mask[place].any() else NOTHING_ALLOWED


def _follow(sequence: Sequence, token: int) -> Verdict:
    """A stop token is content unless the output may end there."""
    grammar = sequence.grammar
    assert grammar is not None
    if len(sequence.tokens) >= sequence.limit:  # the token is not taken
        return Verdict()
    started = time.thread_time()
    try:
        if token in sequence.request.params.stop_token_ids and grammar.may_end:
            return Verdict(Finish("stop", matched=token))
        if not grammar.accept(token):
            return Verdict(error=f"the grammar does not accept token {token}, which it had allowed")
        finish = Finish("stop") if grammar.ended else None
    except Exception as error:
        return Verdict(error=f"the grammar failed: {type(error).__name__}: {error}")
    return Verdict(error=TOO_SLOW) if finish is None and _is_spent(sequence, started) else Verdict(finish)


def _open(sequence: Sequence) -> Verdict:
    """What the output begins with; its last token is left to a step, so that there is one."""
    started = time.thread_time()
    try:
        forced = _forced(sequence, sequence.limit - len(sequence.tokens), sampled=(), whole=False)
    except Exception as error:
        return Verdict(error=f"the grammar failed: {type(error).__name__}: {error}")
    return Verdict(error=TOO_SLOW) if _is_spent(sequence, started) else Verdict(forced=forced)


def _follow_and_jump(sequence: Sequence, token: int) -> Verdict:
    """The same, and then what must come next. Log-probabilities of that come with the token after it, if asked for."""
    verdict = _follow(sequence, token)
    grammar, room = sequence.grammar, sequence.limit - len(sequence.tokens) - 1
    if grammar is None or verdict.finish is not None or verdict.error is not None or room <= 0:
        return verdict
    started = time.thread_time()
    try:
        forced = _forced(sequence, room, sampled=(token,), whole=sequence.request.logprobs is None)
        finish = Finish("stop") if forced and grammar.ended else None
    except Exception as error:
        return Verdict(error=f"the grammar failed: {type(error).__name__}: {error}")
    return Verdict(error=TOO_SLOW) if finish is None and _is_spent(sequence, started) else Verdict(finish, None, forced)


def _forced(sequence: Sequence, room: int, *, sampled: tuple[int, ...], whole: bool) -> tuple[int, ...]:
    """Tokens that must follow ``sampled``, at most ``room``, or one less unless ``whole``; the grammar accepts them.

    Those that a tokenizer may join with what follows are left out, except where nothing does.
    """
    grammar, cutter = sequence.grammar, sequence.cutter
    if grammar is None or cutter is None:
        return ()
    before = sequence.tokens[max(sequence.prompt_len, len(sequence.tokens) - CONTEXT) :]
    cut = cutter.cut((*before, *sampled), grammar.forced())
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


def _is_spent(sequence: Sequence, started: float) -> bool:
    """Count the time since ``started``; True once the output has asked too much."""
    sequence.grammar_seconds += time.thread_time() - started
    return sequence.grammar_seconds > BUDGET + BUDGET_PER_TOKEN * sequence.generated


def _allow_stops(sequence: Sequence, grammar: Grammar, row: Tensor) -> None:
    """Stop tokens may come where the output may end, unless that is too early and something else may come."""
    params = sequence.request.params
    if not params.stop_token_ids:
        return
    if sequence.generated < params.min_new_tokens:
        before = row.clone()
        for token in params.stop_token_ids:
            row[token // MASK_BITS] &= ~_bit(token)
        if row.any():
            return
        row.copy_(before)
    if grammar.may_end:
        for token in params.stop_token_ids:
            row[token // MASK_BITS] |= _bit(token)


def _bit(token: int) -> int:
    """The token's bit of its word, as a signed number of 32 bits."""
    bit = token % MASK_BITS
    return 1 << bit if bit < MASK_BITS - 1 else -(1 << bit)
