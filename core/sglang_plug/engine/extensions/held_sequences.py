"""Admitted sequences that are not queued yet, because step extensions hold them."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from sglang_plug.contracts.extension.sampling_phases import HoldPhase, ReadySequence
from sglang_plug.contracts.request import Finish, RequestError
from sglang_plug.engine.sequences.sequence import Sequence

from .request_points import RequestPoints
from .step_points import forced_tokens_problem

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Held:
    sequence: Sequence
    holders: set[int]
    """The indices of the extensions that hold it."""


class HeldSequences:
    """Keeps sequences until every extension that holds them has named them as ready.

    Args:
        requests: the extension points of requests.
    """

    def __init__(self, requests: RequestPoints) -> None:
        self._requests = requests
        self._held: dict[str, _Held] = {}

    def __len__(self) -> int:
        """Return the number of held sequences."""
        return len(self._held)

    def sequences(self) -> list[Sequence]:
        """Return the held sequences, the first held first."""
        return [held.sequence for held in self._held.values()]

    def hold(self, sequence: Sequence) -> bool:
        """Let the extensions hold ``sequence``; return False if none does. Raises the error of one that fails."""
        holders = set[int]()
        try:
            for number, holder in enumerate(self._requests.hold_phases):
                if holder.hold(sequence):
                    holders.add(number)
        except BaseException:
            self._requests.end_sequence(sequence)
            raise
        if holders:
            self._held[sequence.request.id] = _Held(sequence, holders)
        return bool(holders)

    def release(self) -> list[tuple[Sequence, Finish | RequestError | None]]:
        """Return the sequences that nobody holds any more, with the reason if they have ended already.

        Tokens that begin their outputs are appended. Sequences that are not held any more are ignored.
        """
        released: list[tuple[Sequence, Finish | RequestError | None]] = []
        for number, holder in enumerate(self._requests.hold_phases):
            for ready in holder.ready():
                held = self._held.get(ready.sequence.request.id)
                if held is None or held.sequence is not ready.sequence or number not in held.holders:
                    continue
                held.holders.discard(number)
                finish = self._append(holder, ready, held.sequence)
                if held.holders and finish is None:
                    continue
                del self._held[held.sequence.request.id]
                if finish is not None:
                    self._requests.end_sequence(held.sequence)
                released.append((held.sequence, finish))
        return released

    def _append(self, holder: HoldPhase, ready: ReadySequence, sequence: Sequence) -> Finish | RequestError | None:
        """Append the tokens that begin the output; return the reason if the request ends now."""
        if ready.finish is None and ready.forced:
            room = sequence.limit - len(sequence.tokens) - 1
            method = f"{self._requests.names.of(holder)}: ready()"
            problem = forced_tokens_problem(method, ready.forced, room, self._requests.vocab_size)
            if problem is not None:
                logger.error("request %r: %s", sequence.request.id, problem)
                return RequestError(problem, 500)
        sequence.tokens += ready.forced
        return ready.finish

    def abort(self, id: str) -> bool:
        """Drop a held sequence; return False if there is none."""
        held = self._held.pop(id, None)
        if held is not None:
            self._requests.end_sequence(held.sequence)
        return held is not None
