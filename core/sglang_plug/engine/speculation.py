"""Which decoding sequences compute drafts behind their last token, how many, and what came of earlier ones.

Drafts are taken from what a step has left when everything else is planned: of its tokens, and of free slots. A
sequence whose drafts come true gets more of them, one whose drafts fail none for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace

from sglang_plug.drafting import Drafter, SequenceDrafter

from .sequence import Sequence
from .shares import Share
from .slots import SlotPool

logger = logging.getLogger(__name__)

FIRST_DEPTH = 2
"""Drafts of a sequence of which nothing is known yet."""
MOST_MISSES = 6
"""After so many drafts in vain a sequence rests for ``2 ** MOST_MISSES`` tokens, which is the most."""


@dataclass(slots=True)
class Drafting:
    """One sequence's drafter, and how its drafts have fared."""

    drafter: SequenceDrafter
    known: int
    """Leading tokens that the drafter was told of."""
    depth: int
    """Most drafts in the next step."""
    misses: int = 0
    """How often nothing came of drafts, less what came of others."""
    resume: int = 0
    """Tokens that the sequence has when drafts are tried again."""
    foreseen: tuple[int, int] | None = None
    """Place and token of a guess for which a step was waited for."""

    def fared(self, drafted: int, accepted: int, length: int, most: int) -> None:
        """``accepted`` of ``drafted`` tokens came true, and the sequence has ``length`` tokens now."""
        if accepted:
            self.misses = max(0, self.misses - accepted)
            self.depth = min(most, 2 * drafted if accepted == drafted else accepted + 1)
            return
        self.misses = min(self.misses + 1, MOST_MISSES)
        self.depth = max(1, self.depth // 2)
        self.resume = length + (1 << self.misses)


class Speculation:
    """Asks a drafter.

    Args:
        drafter: a component; one that breaks its contract is not asked again.
        name: what it is called in a log.
        most: drafts of one sequence in a step.
        step_tokens: most tokens of a step that has drafts: beyond, it costs more than it can save.
        vocabulary: every token is below it.
        describe: an error in one line.
    """

    def __init__(
        self,
        drafter: Drafter,
        *,
        name: str,
        most: int,
        step_tokens: int,
        vocabulary: int,
        describe: Callable[[BaseException], str] = repr,
    ) -> None:
        self.most, self.step_tokens = most, step_tokens
        self._drafter: Drafter | None = drafter
        self._name, self._vocabulary, self._describe = name, vocabulary, describe

    def draft(self, shares: list[Share], pool: SlotPool, budget: int) -> list[Share]:
        """``shares``, some of them with drafts, for which slots were taken.

        Args:
            shares: the whole step; each has its slots.
            pool: gives slots, as far as some are free.
            budget: most tokens of the step.
        """
        room = min(budget, self.step_tokens) - sum(share.count for share in shares)
        if self._drafter is None or room <= 0:
            return shares
        asked = [place for place, share in enumerate(shares) if self._is_drafted(share)]
        planned = list(shares)
        for done, place in enumerate(asked):
            share = shares[place]
            fair = -(-room // (len(asked) - done))
            drafts = self._guess(share.sequence, fair)
            length = len(share.sequence.tokens) + len(drafts)
            if not drafts or pool.missing(len(share.sequence.slots), length) > pool.free:
                continue
            pool.extend(share.sequence.slots, length)
            planned[place] = replace(share, drafts=drafts)
            room -= len(drafts)
            if room <= 0:
                break
        return planned

    def foresees(self, shares: Ordered[Share]) -> bool:
        """True if, once the step of ``shares`` is done, drafts may be had for one of them: it is worth waiting for."""
        if self._drafter is None or len(shares) >= self.step_tokens:
            return False
        for share in shares:
            sequence = share.sequence
            if self._is_drafted(share) and (guess := self._guess(sequence, 1)) and sequence.drafting is not None:
                sequence.drafting.foreseen = len(sequence.tokens), guess[0]
                return True
        return False

    def fared(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Of the ``drafted`` tokens that a step computed for ``sequence``, ``accepted`` came true; it has them."""
        state = sequence.drafting
        assert state is not None
        state.fared(drafted, accepted, len(sequence.tokens), self.most)

    def end(self, sequence: Sequence) -> None:
        """An output is over."""
        if self._drafter is None or not sequence.generated:
            return
        try:
            state = self._state(sequence)
            state.drafter.end(sequence.tokens[state.known :])
        except Exception as error:
            self._stop(self._describe(error))

    def _is_drafted(self, share: Share) -> bool:
        """True if it computes one generated token, the last, and what comes of it may be compared with a guess."""
        sequence = share.sequence
        request = sequence.request
        if share.count != 1 or not share.complete or not sequence.generated or request.task != "generate":
            return False
        if sequence.grammar is not None or request.params.penalised:
            return False
        state = sequence.drafting
        return state is None or state.resume <= len(sequence.tokens)

    def _guess(self, sequence: Sequence, most: int) -> tuple[int, ...]:
        """At most ``most`` drafts; empty if it has no use for any, or nothing came of the last guess."""
        if self._drafter is None:
            return ()
        try:
            state = self._state(sequence)
            if self._was_wrong(sequence, state):
                return ()
            most = min(most, state.depth, sequence.limit - len(sequence.tokens) - 1)
            if most < 1:
                return ()
            news = sequence.tokens[state.known :]
            state.known = len(sequence.tokens)
            drafts = tuple(state.drafter.propose(news, most))
            problem = self._problem(drafts, most)
        except Exception as error:
            drafts, problem = (), self._describe(error)
        if problem is not None:
            self._stop(problem)
            return ()
        return drafts

    def _was_wrong(self, sequence: Sequence, state: Drafting) -> bool:
        """True if another token came than that for which a step was waited for."""
        foreseen, state.foreseen = state.foreseen, None
        if foreseen is None or foreseen[0] >= len(sequence.tokens) or sequence.tokens[foreseen[0]] == foreseen[1]:
            return False
        state.fared(1, 0, len(sequence.tokens), self.most)
        return True

    def _state(self, sequence: Sequence) -> Drafting:
        if sequence.drafting is None:
            assert self._drafter is not None
            drafter = self._drafter.begin(sequence.request.tokens, salt=sequence.request.salt)
            if not isinstance(drafter, SequenceDrafter):
                raise TypeError(f"begin() gave {type(drafter).__name__}, not a SequenceDrafter")
            sequence.drafting = Drafting(drafter, sequence.prompt_len, min(FIRST_DEPTH, self.most))
        return sequence.drafting

    def _problem(self, drafts: tuple[int, ...], most: int) -> str | None:
        """What is wrong with a guess."""
        if len(drafts) > most:
            return f"it proposed {len(drafts)} tokens where at most {most} were asked for"
        for token in drafts:
            if not isinstance(token, int) or not 0 <= token < self._vocabulary:
                return f"it proposed {token!r}, which is no token of a vocabulary of {self._vocabulary}"
        return None

    def _stop(self, problem: str) -> None:
        logger.error("%s is not asked any more, outputs go on without drafts: %s", self._name, problem)
        self._drafter = None
