"""The contract of schedule policies: which sequences are computed next, and which are preempted.

Every policy orders the waiting sequences (``SchedulePolicy``). Two more protocols are optional, and a policy that has
any of their methods must have all of them:

* ``AccountingPolicy`` learns which callers have requests, and what each of them has used. A policy that shares the
  engine between callers needs it.
* ``PreemptivePolicy`` also orders the prompts that are being computed, and says which running sequences are preempted
  in favour of which waiting ones. A policy by deadline needs this, and nothing about callers.

The engine calls nothing per token, and nothing at all of a protocol that a policy does not implement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sglang_plug.contracts.serving.cache import Match


class Waiting(Protocol):
    """A sequence in the queue, as a schedule policy sees it."""

    @property
    def tokens(self) -> Sequence[int]:
        """The prompt, and the tokens that were generated before a retraction."""

    @property
    def priority(self) -> int:
        """The request's priority; higher is more urgent."""

    @property
    def arrived(self) -> float:
        """Time at which the request reached the server, ``time.time()``."""

    @property
    def caller(self) -> str:
        """Id of the caller that the request is served for; empty if callers are not distinguished."""

    @property
    def deadline(self) -> float | None:
        """Time at which the output should be complete, ``time.time()``; ``None``: there is no deadline."""

    @property
    def computed(self) -> int:
        """Leading tokens that are in the KV pool; 0 while the sequence waits."""


class SchedulePolicy(Protocol):
    """Decides the order in which waiting sequences are admitted."""

    def order(self, waiting: Sequence[Waiting], match: Callable[[Waiting], Match]) -> Sequence[Waiting]:
        """Return the same sequences in the order of admission. ``match`` looks a sequence up in the prefix cache.

        The result follows from the order of ``waiting`` and from what the sequences are, never from addresses or hashes
        of the objects.
        """


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens that steps computed and generated for one caller."""

    caller: str
    computed: int
    """Input tokens. Those from the prefix cache, and those that are computed again after a retraction, do not count."""
    generated: int
    """Output tokens."""


class AccountingPolicy(Protocol):
    """Optional methods of a schedule policy that keeps accounts of callers."""

    def activated(self, caller: str, weight: float) -> None:
        """A caller without open requests has one now; ``weight`` is its fair share relative to others."""

    def deactivated(self, caller: str) -> None:
        """The last open request of a caller has ended."""

    def joined_queue(self, caller: str) -> None:
        """An active caller gets its first open request that has not been admitted yet."""

    def left_queue(self, caller: str) -> None:
        """All requests of an active caller have been admitted, or have ended."""

    def charge(self, usage: Sequence[TokenUsage]) -> None:
        """Steps have ended; ``usage`` has one entry for each active caller that they computed something for.

        A step with prompts is charged separately, as soon as it has ended. Steps without any are charged together,
        before the policy is asked for an order or told of a caller. Not called with an empty sequence.
        """


class PreemptivePolicy(Protocol):
    """Optional methods of a schedule policy in which waiting sequences may go before running ones."""

    def can_preempt(self) -> bool:
        """Report whether a waiting sequence may go before a running one now. Called in every step: answer quickly.

        While it may, ``order`` gets the running sequences whose prompts are not complete together with the waiting
        ones. A running sequence that others precede keeps running: it keeps its KV slots, and continues later.
        """

    def preempt(
        self, running: Sequence[Waiting], waiting: Sequence[Waiting], free_running_slots: int
    ) -> tuple[Sequence[Waiting], Sequence[Waiting]]:
        """Return the running sequences that are preempted, and the waiting ones that are admitted first.

        Called while ``can_preempt`` returns True: after arrivals, and now and then. What a preempted sequence has
        computed stays in the prefix cache until it is evicted.

        Args:
            running: the first admitted first.
            waiting: in no particular order.
            free_running_slots: number of further sequences that may run (``--max-running-requests`` minus those that
                run); 0 also if a waiting sequence found too few KV slots.
        """
