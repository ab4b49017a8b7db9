"""The engine's side of schedule policies that share it between callers: accounts, and the order of running prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from sglang_plug.contracts.request import Output
from sglang_plug.contracts.serving.scheduling import AccountingPolicy, PreemptivePolicy, TokenUsage
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk
from sglang_plug.engine.sequences.sequence import Sequence

DEFAULT_WEIGHT = 1.0
SHORT_STEP_DIVISOR = 8
"""A step that admits the last waiting request of a caller is filled up to one part in so many of its budget with
prompts of callers that have more, so that the step is short."""


class CallerAccounting:
    """Tells a policy what callers use, and which running prompts it orders. Does nothing for other policies.

    Args:
        accounting: the policy, if it keeps accounts of callers.
        preemptive: the policy, if it orders running prompts.
        weights: id of a caller -> its weight, for callers whose weight is not 1.
    """

    def __init__(
        self,
        accounting: AccountingPolicy | None = None,
        preemptive: PreemptivePolicy | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self._accounting = accounting
        self._preemptive = preemptive
        self._weights = dict(weights or {})
        self._open = Counter[str]()
        self._queued = Counter[str]()
        """The number of open requests of each caller, and the number of those that wait for their first admission."""
        self._drained = set[str]()
        """Callers whose last waiting request is admitted by the step that is planned."""
        self._in_step = False
        self._computed = dict[str, int]()
        self._generated = dict[str, int]()
        """Input and output tokens of each caller that the policy was not charged for yet."""
        self._ended: list[Sequence] = []
        """Sequences that ended with that step."""

    def queued(self, sequence: Sequence) -> None:
        """Note a new request."""
        if self._accounting is None:
            return
        self._charge(self._accounting)
        caller = sequence.caller
        self._open[caller] += 1
        self._queued[caller] += 1
        if self._open[caller] == 1:
            self._accounting.activated(caller, self._weights.get(caller, DEFAULT_WEIGHT))
        if self._queued[caller] == 1:
            self._accounting.joined_queue(caller)

    def admitted(self, sequence: Sequence) -> None:
        """Note the first admission of a request."""
        if self._accounting is None:
            return
        caller = sequence.caller
        self._leave_queue(self._accounting, caller)
        if caller not in self._queued and len(self._open) > 1:
            self._drained.add(caller)

    def should_shorten_step(self, sequence: Sequence) -> bool:
        """Report whether to shorten the step before ``sequence``, for callers whose last waiting request is in it."""
        if not self._drained or sequence.caller in self._drained:
            return False
        return sequence.was_admitted or self._queued[sequence.caller] > 1

    def ended(self, sequence: Sequence) -> None:
        """Note the end of a request, whatever its reason."""
        if self._accounting is None:
            return
        if self._in_step:  # the step is charged before its callers are deactivated
            self._ended.append(sequence)
            return
        self._charge(self._accounting)
        caller = sequence.caller
        if not sequence.was_admitted:
            self._leave_queue(self._accounting, caller)
        self._open[caller] -= 1
        if not self._open[caller]:
            del self._open[caller]
            self._accounting.deactivated(caller)

    def _leave_queue(self, accounting: AccountingPolicy, caller: str) -> None:
        self._queued[caller] -= 1
        if not self._queued[caller]:
            del self._queued[caller]
            accounting.left_queue(caller)

    def charge(self) -> None:
        """Charge the policy for what steps have computed so far, before it is asked for an order."""
        if self._accounting is not None:
            self._charge(self._accounting)

    def split(self, prompts: list[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
        """Return the running prompts that continue first, and those that the policy orders together with the queue."""
        if prompts:
            self.charge()
        if not prompts or self._preemptive is None or not self._preemptive.can_preempt():
            return prompts, []
        ordered = [sequence for sequence in prompts if len(sequence.slots) >= len(sequence.tokens)]
        return [sequence for sequence in prompts if len(sequence.slots) < len(sequence.tokens)], ordered

    def begin_commit(self, chunks: Iterable[ScheduledChunk], *, has_prompts: bool) -> None:
        """Count the input tokens of a step; call it before the results of the step are applied.

        A token of a prompt counts once, when it is computed first. ``has_prompts`` is False if ``chunks`` has none.
        """
        if self._accounting is None:
            return
        self._in_step = True
        self._drained.clear()
        if not has_prompts:
            return
        self._charge(self._accounting)
        for chunk in chunks:
            sequence = chunk.sequence
            known = max(sequence.computed, sequence.service.charged)
            end = min(sequence.computed + chunk.count, sequence.prompt_len)
            if end > known and not chunk.dropped:
                sequence.service.charged = end
                self._computed[sequence.caller] = self._computed.get(sequence.caller, 0) + end - known

    def end_commit(self, chunks: Iterable[ScheduledChunk], outputs: Iterable[Output]) -> None:
        """Count the output tokens of ``chunks``; call it once the results of the step are applied.

        The policy is charged at once for steps with prompts, and for others before its next order.
        """
        if self._accounting is None:
            return
        generated, callers = self._generated, {chunk.sequence.request.id: chunk.sequence.caller for chunk in chunks}
        for output in outputs:
            caller = callers[output.id]
            generated[caller] = generated.get(caller, 0) + len(output.tokens)
        self._in_step = False
        if self._computed:
            self._charge(self._accounting)
        if self._ended:
            ended, self._ended = self._ended, []
            for sequence in ended:
                self.ended(sequence)

    def _charge(self, accounting: AccountingPolicy) -> None:
        """Charge the policy's accounts for what was computed and generated since the last call."""
        computed, generated = self._computed, self._generated
        if not computed and not generated:
            return
        usage = [
            TokenUsage(caller, computed.get(caller, 0), generated.get(caller, 0))
            for caller in dict.fromkeys((*computed, *generated))
            if computed.get(caller) or generated.get(caller)
        ]
        computed.clear()
        generated.clear()
        if usage:
            accounting.charge(usage)
