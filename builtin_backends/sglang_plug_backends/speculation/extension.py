"""The step extension of speculative decoding: it decides which sequences get draft tokens, and how many.

Draft tokens use what a step has left when everything else is planned: its token budget, and free KV slots. A sequence
whose drafts are accepted gets more of them; one whose drafts are rejected gets none for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace

from sglang_plug import (
    AdmissionPhase,
    ChunkView,
    DraftCounts,
    Drafter,
    Output,
    OutputPhase,
    PlanningPhase,
    SequenceDrafter,
    SequenceView,
    StepExtension,
    StepPlan,
    panics_as_errors,
)

logger = logging.getLogger(__name__)

FIRST_DEPTH = 2
"""Draft tokens of a sequence's first step with drafts."""
MAX_MISSES = 6
"""A sequence whose drafts were rejected this often gets none for ``2 ** MAX_MISSES`` tokens, which is the longest
pause."""


@dataclass(slots=True)
class DraftState:
    """The drafter of one sequence, and the success of its drafts."""

    drafter: SequenceDrafter
    known: int
    """Leading tokens that the drafter has received."""
    depth: int
    """Maximum number of draft tokens in the next step."""
    misses: int = 0
    """Rejected drafts, less the accepted tokens of other drafts."""
    resume: int = 0
    """Length of the sequence from which on drafts are tried again."""
    expected: tuple[int, int] | None = None
    """Position and token of a draft for which the engine waited for a step."""
    drafted: int = 0
    """Draft tokens that were verified."""
    accepted: int = 0
    """Draft tokens that became tokens of the sequence."""

    def record_acceptance(self, drafted: int, accepted: int, length: int, max_draft_tokens: int) -> None:
        """Adapt depth and pauses: ``accepted`` of ``drafted`` tokens are right; the sequence has ``length`` tokens."""
        self.drafted += drafted
        self.accepted += accepted
        if accepted:
            self.misses = max(0, self.misses - accepted)
            self.depth = min(max_draft_tokens, 2 * drafted if accepted == drafted else accepted + 1)
            return
        self.record_miss(length)

    def record_miss(self, length: int) -> None:
        """Adapt depth and pauses after a draft whose first token is wrong; the sequence has ``length`` tokens."""
        self.misses = min(self.misses + 1, MAX_MISSES)
        self.depth = max(1, self.depth // 2)
        self.resume = length + (1 << self.misses)


class Speculation(StepExtension, AdmissionPhase, PlanningPhase, OutputPhase):
    """Adds the draft tokens of a drafter to steps.

    Args:
        drafter: a component; it is not asked again once it breaks its contract.
        name: the drafter's name in the log.
        max_draft_tokens: maximum number of draft tokens of one sequence in a step.
        step_tokens: maximum number of tokens of a step that has drafts: a larger step costs more than drafts can save.
        vocabulary: number of tokens; each token is below it.
        describe: formats an error in one line.
    """

    def __init__(
        self,
        drafter: Drafter,
        *,
        name: str,
        max_draft_tokens: int,
        step_tokens: int,
        vocabulary: int,
        describe: Callable[[BaseException], str] = repr,
    ) -> None:
        self.max_draft_tokens, self.step_tokens = max_draft_tokens, step_tokens
        self.max_draft_rows = step_tokens
        self._drafter: Drafter | None = drafter
        self._name, self._vocabulary, self._describe = name, vocabulary, describe

    def plan(self, step: StepPlan) -> None:
        """Divide what the step has left among the sequences that decode."""
        room = min(step.budget, self.step_tokens) - sum(chunk.count for chunk in step.chunks)
        if self._drafter is None or room <= 0:
            return
        eligible = [index for index, chunk in enumerate(step.chunks) if self._is_eligible(chunk)]
        for done, index in enumerate(eligible):
            fair_part = -(-room // (len(eligible) - done))
            drafts = self._propose(step.chunks[index].sequence, fair_part)
            if not drafts or not step.add_drafts(index, drafts):
                continue
            room -= len(drafts)
            if room <= 0:
                break

    def waits_for(self, chunks: Ordered[ChunkView]) -> bool:
        """Report whether a sequence of ``chunks`` probably gets drafts in the next step."""
        if self._drafter is None or len(chunks) >= self.step_tokens:
            return False
        for chunk in chunks:
            sequence = chunk.sequence
            if self._is_eligible(chunk) and (draft := self._propose(sequence, 1)) and self in sequence.extras:
                self._state(sequence).expected = len(sequence.tokens), draft[0]
                return True
        return False

    def verified(self, sequence: SequenceView, drafted: int, accepted: int) -> None:
        """Adapt the number of draft tokens of ``sequence``."""
        self._state(sequence).record_acceptance(drafted, accepted, len(sequence.tokens), self.max_draft_tokens)

    def output(self, sequence: SequenceView, output: Output) -> Output:
        """Add the counts of draft tokens to the output of a sequence that had some."""
        state: DraftState | None = sequence.extras.get(self)
        if state is None or not state.drafted:
            return output
        return replace(output, drafts=DraftCounts(state.drafted, state.accepted))

    def finished(self, sequence: SequenceView) -> None:
        """Let the drafter have the last tokens of an output."""
        if self._drafter is None or not sequence.generated:
            return
        try:
            with panics_as_errors():
                state = self._state(sequence)
                state.drafter.end(sequence.tokens[state.known :])
        except Exception as error:
            self._stop(self._describe(error))

    def _is_eligible(self, chunk: ChunkView) -> bool:
        """Report whether ``chunk`` computes only the last generated token, and drafts may be verified after it."""
        sequence = chunk.sequence
        if chunk.count != 1 or not chunk.complete or not sequence.generated or sequence.request.task != "generate":
            return False
        if not sequence.accepts_drafts:
            return False
        state: DraftState | None = sequence.extras.get(self)
        return state is None or state.resume <= len(sequence.tokens)

    def _propose(self, sequence: SequenceView, max_draft_tokens: int) -> tuple[int, ...]:
        """Return at most ``max_draft_tokens`` draft tokens; none if unused, or after a wrong expectation."""
        if self._drafter is None:
            return ()
        try:
            with panics_as_errors():
                state = self._state(sequence)
                if self._was_wrong(sequence, state):
                    return ()
                max_draft_tokens = min(max_draft_tokens, state.depth, sequence.limit - len(sequence.tokens) - 1)
                if max_draft_tokens < 1:
                    return ()
                new_tokens = sequence.tokens[state.known :]
                state.known = len(sequence.tokens)
                drafts = tuple(state.drafter.propose(new_tokens, max_draft_tokens))
            problem = self._problem(drafts, max_draft_tokens)
        except Exception as error:
            drafts, problem = (), self._describe(error)
        if problem is not None:
            self._stop(problem)
            return ()
        return drafts

    def _was_wrong(self, sequence: SequenceView, state: DraftState) -> bool:
        """Report whether another token was sampled than the one for which the engine waited for a step."""
        expected, state.expected = state.expected, None
        if expected is None or expected[0] >= len(sequence.tokens) or sequence.tokens[expected[0]] == expected[1]:
            return False
        state.record_miss(len(sequence.tokens))
        return True

    def _state(self, sequence: SequenceView) -> DraftState:
        state: DraftState | None = sequence.extras.get(self)
        if state is None:
            assert self._drafter is not None
            drafter = self._drafter.begin(sequence.request.tokens, salt=sequence.request.salt)
            if not isinstance(drafter, SequenceDrafter):
                raise TypeError(f"begin() returned {type(drafter).__name__}, not a SequenceDrafter")
            state = DraftState(drafter, sequence.prompt_len, min(FIRST_DEPTH, self.max_draft_tokens))
            sequence.extras[self] = state
        return state

    def _problem(self, drafts: tuple[int, ...], max_draft_tokens: int) -> str | None:
        """Describe what is wrong with a proposal; ``None`` if nothing is."""
        if len(drafts) > max_draft_tokens:
            return f"it proposed {len(drafts)} tokens where at most {max_draft_tokens} were asked for"
        for token in drafts:
            if not isinstance(token, int) or not 0 <= token < self._vocabulary:
                return f"it proposed {token!r}, which is no token of a vocabulary of {self._vocabulary}"
        return None

    def _stop(self, problem: str) -> None:
        logger.error("Speculative decoding is disabled: %s: %s", self._name, problem)
        self._drafter = None
