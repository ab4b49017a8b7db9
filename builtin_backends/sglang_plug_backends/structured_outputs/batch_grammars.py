"""Calls of the grammars of a step: filling token masks, and advancing by the sampled tokens.

Slow grammars are called in threads, where a call can be abandoned, and their masks are filled in parallel with the
forward pass. Grammars that have been quick so far are called directly, because a thread would cost more; on an
asynchronous device these calls run in parallel with the forward pass, too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor

from sglang_plug import EXIT_EXCEPTIONS, AllowedTokens, Finish, Grammar, RequestError, SequenceView, TokenDecision
from sglang_plug_backends.grammars.token_mask import MASK_BITS, word_and_bit

from .forced_tokens import CONTEXT
from .grammar_state import GrammarState
from .guarded_calls import Calls, Threads
from .reasoning_prefix import DeferredConstraint
from .rejection import RemainingTokens

TIMEOUT_SECONDS = 2.0
"""Seconds that one call may take before its request is given up."""
TOO_SLOW = "following the output takes its grammar too long: it is too ambiguous; simplify it"
Filled = Literal[True]
"""The result of a call that filled a mask."""
FILLED: Filled = True
NOTHING_ALLOWED = "no token of the vocabulary can continue the output under its constraint"
NOTHING_MORE = TokenDecision()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """Limits of the time that grammars take, in seconds."""

    quick: float = 0.001
    """Computing within which a call of a grammar counts as quick."""
    quick_by_clock: float = 0.01
    """Time by the clock within which a call of a grammar counts as quick."""
    budget: float = 2.0
    """Computing in its grammar that one output may use in total, besides ``budget_per_token``."""
    budget_per_token: float = 0.05
    """Computing in its grammar that one output may use for each generated token."""


class MaskBatch:
    """The masks of a batch while they are being filled. A ``PendingMask``.

    Args:
        sequences: the sequences of the batch.
        states: the grammars of those that have one, by row, in ascending order.
        vocab_words: words in a row of a mask.
        threads: call the grammars that are not quick.
        limits: of the time that grammars take.
        guarded: see ``Grammars``.
    """

    def __init__(
        self,
        sequences: Ordered[SequenceView],
        states: Mapping[int, GrammarState],
        vocab_words: int,
        threads: Threads,
        limits: TimeLimits,
        *,
        guarded: bool,
    ) -> None:
        self._sequences, self._limits, self._guarded = sequences, limits, guarded
        self._rows, self._states = list(states), list(states.values())
        with torch.inference_mode(False):  # other threads write to it
            self._mask = torch.zeros(len(states), vocab_words, dtype=torch.int32)
        self._quick = [index for index, state in enumerate(self._states) if state.quick]
        self._others = [index for index, state in enumerate(self._states) if not state.quick]
        self._outcomes: dict[int, RequestError | Filled | None] = {}
        self._calls = threads.begin([partial(self._fill, index) for index in self._others])

    def fill_quick(self) -> None:
        """Fill the masks of quick grammars."""
        self._outcomes |= {index: self._fill(index) for index in self._quick}
        self._quick = []

    def result(self) -> AllowedTokens:
        """Wait for all masks and return them."""
        self.fill_quick()
        self._outcomes |= zip(self._others, self._calls.results(), strict=True)
        errors = {}
        for index, outcome in self._outcomes.items():
            row = self._rows[index]
            if outcome is None:
                self._states[index].quick = False
            if outcome is not FILLED:
                errors[row] = RequestError(TOO_SLOW) if outcome is None else outcome
        mask = self._mask
        if errors:
            mask = mask.clone()  # an abandoned call may still write to it
            mask[[index for index, row in enumerate(self._rows) if row in errors]] = 0
        return AllowedTokens(self._rows, mask, errors)

    def _fill(self, index: int) -> RequestError | Filled:
        sequence = self._sequences[self._rows[index]]
        return _fill(sequence, self._states[index], self._mask, index, self._limits, guarded=self._guarded)


class Grammars:
    """Calls the grammars of a step.

    Args:
        vocab_size: width of the logits.
        timeout: seconds that one call may take.
        limits: of the time that the grammar of one output takes.
        jump: look for forced tokens (jump-forward decoding).
        guarded: True if a ``GrammarGuard`` interrupts direct calls that hang; otherwise all calls are made in threads.
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        timeout: float = TIMEOUT_SECONDS,
        limits: TimeLimits | None = None,
        jump: bool = True,
        guarded: bool = True,
    ) -> None:
        self._words, self._guarded = -(-vocab_size // MASK_BITS), guarded
        self._threads, self._limits = Threads(timeout), limits or TimeLimits()
        self._opening_threads = Threads(timeout)  # others, so that no step waits for new outputs
        self._follow = partial(_follow, limits=self._limits, jump=jump, words=self._words)
        self._open = partial(_open, limits=self._limits, jump=jump)

    def open(self, sequence: SequenceView, state: GrammarState) -> Calls[TokenDecision]:
        """Begin to advance the grammar of a new output by the tokens forced at the beginning.

        The decision has ``finish`` if there is nothing to generate.
        """
        return self._opening_threads.begin([partial(self._open, sequence, state)])

    def start(
        self, sequences: Ordered[SequenceView], states: Mapping[int, GrammarState], *, asynchronous: bool = False
    ) -> MaskBatch:
        """Begin to fill the masks of the rows that have ``states``.

        ``asynchronous``: the forward pass will be running when the result is requested, so quick masks wait for that.
        """
        masks = MaskBatch(sequences, states, self._words, self._threads, self._limits, guarded=self._guarded)
        if not asynchronous:
            masks.fill_quick()
        return masks

    def follow(
        self, sequences: Ordered[SequenceView], states: Mapping[int, GrammarState], tokens: Ordered[int]
    ) -> dict[int, TokenDecision]:
        """Advance the grammars of the rows that have ``states`` by their ``tokens``; return the decisions by row."""
        slow = [row for row, state in states.items() if not state.quick]
        calls = self._threads.begin([partial(self._follow, sequences[row], states[row], tokens[row]) for row in slow])
        decisions = {
            row: self._follow(sequences[row], state, tokens[row]) for row, state in states.items() if state.quick
        }
        return decisions | {row: decision or too_slow() for row, decision in zip(slow, calls.results(), strict=True)}


class GrammarTimeout(BaseException):
    """Raised into a grammar that the engine's thread calls directly and that does not return."""


@dataclass(frozen=True, slots=True)
class GrammarCall:
    """A call of a grammar in progress."""

    sequence: SequenceView
    grammar: Grammar
    seconds: float
    """Seconds since the call began."""

    def __str__(self) -> str:
        kind = type(self.grammar)
        return f"the grammar of request {self.sequence.request.id!r} ({kind.__module__}.{kind.__qualname__})"


def current_grammar_call(frame: FrameType | None) -> GrammarCall | None:
    """Return the grammar call of the thread with the innermost ``frame``; ``None`` if it is in no grammar."""
    inner = None
    while frame is not None:
        if inner is not None and frame.f_code in (_fill.__code__, _follow.__code__):
            call = frame.f_locals.get("call")
            if call is None:
                return None
            seconds = time.monotonic() - call.started
            return GrammarCall(frame.f_locals["sequence"], frame.f_locals["state"].grammar, seconds)
        inner, frame = frame, frame.f_back
    return None


def too_slow() -> TokenDecision:
    """Return the decision about an output whose grammar takes too long."""
    return TokenDecision(error=RequestError(TOO_SLOW))


def _failed(grammar: Grammar, error: BaseException) -> RequestError:
    """Return a server error that names the class of the failing grammar."""
    kind = type(grammar.enforced if isinstance(grammar, DeferredConstraint) else grammar)
    text = f"the grammar failed: {type(error).__name__}: {error} (in {kind.__module__}.{kind.__qualname__})"
    return RequestError(text, 500)


def _fill(
    sequence: SequenceView, state: GrammarState, mask: Tensor, index: int, limits: TimeLimits, *, guarded: bool
) -> RequestError | Filled:
    """Fill one row; return ``FILLED`` or the error."""
    grammar, call = state.grammar, CallTimer(limits)
    try:
        if state.remaining_tokens is None:
            grammar.fill(mask, index)
        else:
            mask[index] = state.remaining_tokens.allowed
        row = mask[index].numpy()
        _allow_stops(sequence, grammar, row)
        if call.too_much(sequence, state):
            return RequestError(TOO_SLOW)
        if state.quick is None:
            state.quick = guarded
        return FILLED if row.any() else RequestError(NOTHING_ALLOWED)
    except GrammarTimeout:
        return RequestError(TOO_SLOW)
    except EXIT_EXCEPTIONS:
        raise
    except BaseException as error:
        return _failed(grammar, error)


def _follow(
    sequence: SequenceView, state: GrammarState, token: int, *, limits: TimeLimits, jump: bool, words: int
) -> TokenDecision:
    """Advance a grammar by ``token``; with ``jump``, also by the tokens forced after it.

    A stop token counts as content unless the output may end there. Log-probabilities of forced tokens, if requested,
    are computed with the token after them. ``words``: the width of a mask.
    """
    grammar = state.grammar
    room = sequence.limit - len(sequence.tokens) - 1
    if room < 0:  # there is no room for the token
        return NOTHING_MORE
    call = CallTimer(limits)
    forced: tuple[int, ...] = ()
    try:
        if token in sequence.request.params.stop_token_ids and grammar.may_end:
            return TokenDecision(Finish("stop", matched=token))
        if not grammar.accept(token):
            decision = _rejected(state, token, words)
            return too_slow() if call.too_much(sequence, state) else decision
        state.remaining_tokens = None
        ended = grammar.ended
        if jump and room and not ended:
            forced = _forced(sequence, state, room, sampled=(token,), whole=sequence.request.logprobs is None)
            ended = bool(forced) and grammar.ended
        if call.too_much(sequence, state) and not ended:
            return too_slow()
        return TokenDecision(Finish("stop") if ended else None, None, forced) if ended or forced else NOTHING_MORE
    except GrammarTimeout:
        return too_slow()
    except EXIT_EXCEPTIONS:
        raise
    except BaseException as error:
        return TokenDecision(error=_failed(grammar, error))


def _rejected(state: GrammarState, token: int, words: int) -> TokenDecision:
    """Handle a ``token`` that the mask of a grammar allowed and that the grammar then rejects."""
    grammar = state.grammar
    if state.remaining_tokens is None:
        state.remaining_tokens = RemainingTokens.of(grammar, words)
    if state.remaining_tokens.remove(token, grammar):
        return TokenDecision(rejected=True)
    if grammar.may_end:
        return TokenDecision(Finish("stop"), rejected=True)
    return TokenDecision(error=_failed(grammar, ValueError("it accepts none of the tokens that its mask allows")))


def _open(sequence: SequenceView, state: GrammarState, *, limits: TimeLimits, jump: bool) -> TokenDecision:
    """Return the tokens forced at the beginning of an output, except the last, which is left to a step.

    ``finish`` is set if no token may follow the prompt.
    """
    grammar, call = state.grammar, CallTimer(limits)
    forced: tuple[int, ...] = ()
    try:
        if jump:
            forced = _forced(sequence, state, sequence.limit - len(sequence.tokens), sampled=(), whole=False)
        ended = grammar.ended
    except EXIT_EXCEPTIONS:
        raise
    except BaseException as error:
        return TokenDecision(error=_failed(grammar, error))
    if call.too_much(sequence, state):
        return too_slow()
    return TokenDecision(Finish("stop") if ended else None, forced=forced)


def _forced(
    sequence: SequenceView, state: GrammarState, room: int, *, sampled: tuple[int, ...], whole: bool
) -> tuple[int, ...]:
    """Return the tokens forced after ``sampled``, at most ``room``, or one less unless ``whole``; accept them.

    Tokens that a tokenizer may merge with following text are left out, unless the output ends there. There are none if
    the grammar rejects a token of the text that it forces: the model then generates that text.
    """
    grammar, forced_tokenizer = state.grammar, state.forced_tokenizer
    if forced_tokenizer is None:
        return ()
    text = grammar.forced()
    if not text:
        return ()
    before = sequence.tokens[max(sequence.prompt_len, len(sequence.tokens) - CONTEXT) :]
    jump = forced_tokenizer.tokenize((*before, *sampled), text)
    taken = 0
    for token in jump.tokens[:room]:
        if not grammar.accept(token):
            grammar.rollback(taken)
            return ()
        taken += 1
    ends = taken == len(jump.tokens) and grammar.ended
    max_kept = room if whole else min(room, len(jump.tokens)) - 1
    kept = max(0, min(taken if ends else jump.stable_count, max_kept))
    if taken > kept:
        grammar.rollback(taken - kept)
    return jump.tokens[:kept]


class CallTimer:
    """The start of a call of a grammar, by the thread's own time and by the clock."""

    def __init__(self, limits: TimeLimits) -> None:
        self._limits = limits
        self._computed, self.started = time.thread_time(), time.monotonic()

    def too_much(self, sequence: SequenceView, state: GrammarState) -> bool:
        """Add the time since the start to the grammar's; return True if the output has used too much."""
        computed = time.thread_time() - self._computed
        state.seconds += computed
        if computed > self._limits.quick or time.monotonic() - self.started > self._limits.quick_by_clock:
            state.quick = False
        return state.seconds > self._limits.budget + self._limits.budget_per_token * sequence.generated


def _allow_stops(sequence: SequenceView, grammar: Grammar, row: Any) -> None:
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
