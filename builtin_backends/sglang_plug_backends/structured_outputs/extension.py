"""The step extension of structured outputs: it holds constrained requests, fills masks and checks sampled tokens."""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Sequence as Ordered

from sglang_plug import (
    AdmissionPhase,
    BlockingRequest,
    HoldPhase,
    PendingMask,
    ReadySequence,
    Request,
    RequestError,
    SamplingPhase,
    SequenceView,
    ServicePhase,
    StepExtension,
    TokenDecision,
    WatchdogPhase,
)

from .batch_grammars import TOO_SLOW, Grammars, too_slow
from .constraints import Constraints
from .grammar_guard import GrammarGuard
from .grammar_state import GrammarState
from .guarded_calls import Calls
from .reasoning_prefix import check_prefix

OPEN_SECONDS = 0.001
"""Seconds within which the grammars of new outputs usually are ready; others are left to later steps."""


class WithoutStructuredOutputs(StepExtension):
    """Refuses requests with constraints.

    Args:
        reason: why there are no structured outputs.
    """

    def __init__(self, reason: str) -> None:
        self.refusals = {"constraint": reason}


class StructuredOutputs(StepExtension, AdmissionPhase, HoldPhase, SamplingPhase, ServicePhase, WatchdogPhase):
    """Lets outputs follow the grammars of their requests. A sequence's ``GrammarState`` is in its ``extras``.

    Args:
        constraints: holds requests until their grammars are compiled.
        grammars: calls the grammars of a step.
        guard: interrupts grammars in the engine's thread; ``None`` where they are never called there.
        vocab_size: each token of the model is below it.
    """

    def __init__(
        self, constraints: Constraints, grammars: Grammars, guard: GrammarGuard | None, *, vocab_size: int
    ) -> None:
        self._constraints, self._grammars, self._guard = constraints, grammars, guard
        self._vocab_size = vocab_size
        self._opening: dict[str, tuple[SequenceView, Calls[TokenDecision]]] = {}
        """The held sequences whose grammars are compiled, by request."""
        self._followed = 0
        """Number of sequences that have a grammar and are not over."""

    def start(self) -> None:
        """Begin to start the process that compiles grammars."""
        self._constraints.start()

    def close(self) -> None:
        """End the compiling processes."""
        self._constraints.close()

    def admit(self, sequence: SequenceView) -> None:
        """Check the tokens of the reasoning prefix. Raises ``RequestError``."""
        if (prefix := sequence.request.reasoning_prefix) is not None:
            check_prefix(prefix, self._vocab_size)

    def hold(self, sequence: SequenceView) -> bool:
        """Hold a constrained sequence until its grammar is compiled. Raises ``RequestError`` if it cannot be."""
        if sequence.request.constraint is None:
            return False
        self._constraints.hold(sequence)
        return True

    def ready(self) -> Ordered[ReadySequence]:
        """Return the sequences whose grammars are compiled, with the tokens that these force at the beginning."""
        ready: list[ReadySequence] = []
        begun = set[str]()
        for sequence, outcome in self._constraints.release():
            if isinstance(outcome, RequestError):
                ready.append(ReadySequence(sequence, finish=outcome))
            else:
                self.follow(sequence, outcome)
                begun.add(sequence.request.id)
                self._opening[sequence.request.id] = sequence, self._grammars.open(sequence, outcome)
        deadline = time.monotonic() + OPEN_SECONDS
        for id, (sequence, calls) in list(self._opening.items()):
            if calls.have_ended(max(0.0, deadline - time.monotonic()) if id in begun else 0.0):
                del self._opening[id]
                decision = calls.results()[0] or too_slow()
                ready.append(ReadySequence(sequence, decision.forced, decision.error or decision.finish))
        return ready

    def follow(self, sequence: SequenceView, state: GrammarState) -> None:
        """Let the output of ``sequence`` follow a grammar."""
        if self not in sequence.extras:
            self._followed += 1
        sequence.extras[self] = state

    def finished(self, sequence: SequenceView) -> None:
        """Drop the sequence and its grammar."""
        if not sequence.constrained:
            return
        self._opening.pop(sequence.request.id, None)
        if sequence.extras.pop(self, None) is None:
            self._constraints.abort(sequence.request.id)
        else:
            self._followed -= 1

    def constrains(self, request: Request) -> bool:
        """Report whether the request has a constraint."""
        return request.constraint is not None

    def allowed(self, sequences: Ordered[SequenceView], *, asynchronous: bool) -> PendingMask | None:
        """Begin to fill the masks of the rows that have grammars."""
        states = self._states(sequences)
        return self._grammars.start(sequences, states, asynchronous=asynchronous) if states else None

    def sampled(self, sequences: Ordered[SequenceView], tokens: Ordered[int]) -> Mapping[int, TokenDecision]:
        """Let the grammars check and accept the sampled tokens."""
        states = {row: state for row, state in self._states(sequences).items() if tokens[row] >= 0}
        return self._grammars.follow(sequences, states, tokens) if states else {}

    def check_step(self) -> None:
        """Interrupt a grammar that takes too long, if the engine's thread calls it."""
        if self._guard is not None:
            self._guard.check()

    def blocking_request(self) -> BlockingRequest | None:
        """Return the request whose grammar the engine's thread is calling."""
        call = None if self._guard is None else self._guard.current_call()
        if call is None:
            return None
        return BlockingRequest(call.sequence.request.id, str(call), TOO_SLOW, about="constraint")

    def _states(self, sequences: Ordered[SequenceView]) -> dict[int, GrammarState]:
        """Return the grammars of ``sequences`` by row; without looking at the rows if no sequence has one."""
        if not self._followed:
            return {}
        return {
            row: sequence.extras[self]
            for row, sequence in enumerate(sequences)
            if sequence.constrained and self in sequence.extras
        }
