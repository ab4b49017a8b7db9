"""The extension points of a step: what step extensions add to its planning, forward pass and sampling."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from sglang_plug.contracts.extension.execution import ExecutionPhase
from sglang_plug.contracts.extension.preemption import PreemptionPhase
from sglang_plug.contracts.extension.sampling_phases import PendingMask, TokenDecision
from sglang_plug.contracts.extension.step_budget import StepBudgetPhase
from sglang_plug.contracts.extension.step_phases import GraphPhase, RankStep, StaticInputPhase
from sglang_plug.contracts.extension.views import ChunkView, SequenceView, StepPlan
from sglang_plug.contracts.model.batch import ForwardBatch
from sglang_plug.contracts.model.kernels import Kernels
from sglang_plug.contracts.model.model import Model
from sglang_plug.contracts.request import RequestError

from .names import ExtensionNames

logger = logging.getLogger(__name__)

StepContext = AbstractContextManager[None]
DEFAULT_STEP_BUDGET = StepBudgetPhase()
"""Used if no extension has the phase: the token budget is the only limit of a step."""
DEFAULT_PREEMPTION = PreemptionPhase()
"""Used if no extension has the phase: no sequence is preempted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningPoints:
    """The extension points of planning, which the scheduler calls."""

    order: tuple[Callable[[list[Any], Sequence[Any]], list[Any]], ...] = ()
    plan: tuple[Callable[[StepPlan], None], ...] = ()
    waits_for: tuple[Callable[[Sequence[ChunkView]], bool], ...] = ()
    step_budget: StepBudgetPhase = DEFAULT_STEP_BUDGET
    """The extension that chooses how many prompt tokens a step has."""
    preemption: PreemptionPhase = DEFAULT_PREEMPTION
    """The extension that preempts running sequences."""
    names: ExtensionNames = ExtensionNames()


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardPoints:
    """The extension points of the model and its forward pass, which each rank calls."""

    kernels: tuple[Callable[[Kernels], Kernels], ...] = ()
    inspect: tuple[Callable[[Model], None], ...] = ()
    install: tuple[Callable[[Model, Kernels], None], ...] = ()
    context: tuple[Callable[[Sequence[ChunkView], Sequence[int]], StepContext | None], ...] = ()
    prepare: tuple[Callable[[Sequence[ChunkView], ForwardBatch], None], ...] = ()
    before_forward: tuple[Callable[[Sequence[ChunkView]], None], ...] = ()
    after_forward: tuple[Callable[[Sequence[ChunkView]], None], ...] = ()
    graphs: tuple[GraphPhase, ...] = ()
    """The extensions that take part in graphs of decode steps."""
    static_inputs: tuple[StaticInputPhase, ...] = ()
    """The extensions with an input of every captured decode step."""
    execution_phases: Mapping[str, ExecutionPhase] = field(default_factory=dict)
    """The extensions that compute forward passes, by name."""
    rank_step: Mapping[str, Callable[[Sequence[ChunkView], ForwardBatch], RankStep | None]] = field(
        default_factory=dict
    )
    prepare_step: Mapping[str, Callable[[RankStep, ForwardBatch], StepContext | None]] = field(default_factory=dict)
    handle_command: Mapping[str, Callable[[bytes], None]] = field(default_factory=dict)
    """The methods of ``RankPhase`` by the name of the extension, which messages to worker ranks contain."""

    def step_contexts(self, chunks: Sequence[ChunkView], query_lens: Sequence[int]) -> list[StepContext]:
        """Return what surrounds the forward pass of ``chunks``, the outermost first."""
        contexts = [context(chunks, query_lens) for context in self.context]
        return [context for context in contexts if context is not None]

    def rank_steps(self, chunks: Sequence[ChunkView], batch: ForwardBatch) -> dict[str, RankStep]:
        """Return what worker ranks have to know about a step, by extension."""
        steps = {name: rank_step(chunks, batch) for name, rank_step in self.rank_step.items()}
        return {name: step for name, step in steps.items() if step is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPoints:
    """The extension points of sampling, which the runner calls."""

    allowed: tuple[Callable[..., PendingMask | None], ...] = ()
    sampled: tuple[Callable[[Sequence[SequenceView], Sequence[int]], Mapping[int, TokenDecision]], ...] = ()
    names: ExtensionNames = ExtensionNames()
    vocab_size: int = sys.maxsize
    """The number of token ids, which limits those that are forced."""

    def decisions(self, sequences: Sequence[SequenceView], tokens: Sequence[int]) -> Mapping[int, TokenDecision]:
        """Return the decisions of all extensions about sampled ``tokens``, by row; a wrong one ends its request."""
        decisions: dict[int, TokenDecision] = {}
        deciding: dict[int, Callable[..., Any]] = {}
        for sampled in self.sampled:
            for row, decision in sampled(sequences, tokens).items():
                problem = self._decision_problem(sampled, row, decision, sequences, deciding.get(row))
                if problem is not None:
                    logger.error("request %r: %s", sequences[row].request.id, problem)
                    decision = TokenDecision(error=RequestError(problem, 500))
                decisions[row], deciding[row] = decision, sampled
        return decisions

    def _decision_problem(
        self,
        sampled: Callable[..., Any],
        row: int,
        decision: TokenDecision,
        sequences: Sequence[SequenceView],
        other: Callable[..., Any] | None,
    ) -> str | None:
        """Return the problem of a decision, if any; ``other`` is the method that has decided about ``row`` too.

        Raises ``RuntimeError`` if there is no such row.
        """
        name = self.names.of
        if not 0 <= row < len(sequences):
            raise RuntimeError(f"{name(sampled)}: sampled() decides about row {row} of {len(sequences)}")
        sequence = sequences[row]
        if other is not None:
            return f"{name(other)} and {name(sampled)} both decide about this token; block one of them"
        if not sequence.constrained:
            return f"{name(sampled)}: sampled() decides about an output that it does not constrain"
        if not decision.forced:
            return None
        method, reports = f"{name(sampled)}: sampled()", sequence.request.logprobs is not None
        if reports and decision.finish is not None:
            return f"{method} ends the output with forced tokens, whose log-probabilities are not known then"
        # a later step computes the log-probabilities of forced tokens, and samples a token after them
        room = sequence.limit - len(sequence.tokens) - 1 - reports
        return forced_tokens_problem(method, decision.forced, room, self.vocab_size)


def forced_tokens_problem(method: str, forced: Sequence[int], room: int, vocab_size: int) -> str | None:
    """Return the problem if ``method`` of an extension forces more tokens than there is ``room`` for, or unknown ones.

    A token id outside of the vocabulary would make the whole step fail.
    """
    if len(forced) > max(0, room):
        return f"{method} forces {len(forced)} tokens, and there is room for {max(0, room)}"
    unknown = next((token for token in forced if not 0 <= token < vocab_size), None)
    return None if unknown is None else f"{method} forces token {unknown}, and the vocabulary has {vocab_size}"
