"""The requests that the engine has accepted and not finished: checks of further ones, and the queue of extensions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from itertools import chain, takewhile
from typing import Any

from sglang_plug.contracts.extension.views import SequenceView
from sglang_plug.contracts.request import Request, RequestError
from sglang_plug.contracts.serving.cache import Match
from sglang_plug.engine.scheduling.scheduler import Scheduler
from sglang_plug.engine.sequences.sequence import Sequence


class OpenRequests:
    """The sequences of the requests by id, with the number of requests of each caller."""

    def __init__(self) -> None:
        self._sequences: dict[str, Sequence] = {}
        self._counts = Counter[str]()

    def __contains__(self, id: str) -> bool:
        return id in self._sequences

    def find(self, named: SequenceView) -> Sequence | None:
        """Return the sequence that an extension has named, if its request is open; not another one with its id."""
        sequence = self._sequences.get(named.request.id)
        return sequence if sequence is named else None

    def by_caller(self) -> Mapping[str, int]:
        """Return the number of open requests of each caller that has any."""
        return self._counts

    def add(self, sequence: Sequence) -> None:
        """Record that the request of ``sequence`` has been accepted; no request with its id may be open."""
        self._sequences[sequence.request.id] = sequence
        self._counts[sequence.caller] += 1

    def end(self, id: str) -> None:
        """Record that the request is finished; an unknown id is ignored."""
        sequence = self._sequences.pop(id, None)
        if sequence is None:
            return
        self._counts[sequence.caller] -= 1
        if not self._counts[sequence.caller]:
            del self._counts[sequence.caller]


def check_token_ids(request: Request, vocab_size: int) -> None:
    """Raise ``RequestError`` for an id that is not in the vocabulary, and for an empty end of reasoning.

    Ids from outside index tensors, which checks nothing.
    """
    named = [*request.params.stop_token_ids, *request.params.logit_bias]
    named += request.logprobs.ids if request.logprobs else ()
    if (block := request.reasoning) is not None:
        if not all(block.ends):
            raise RequestError("reasoning: an end marker has no tokens; check the reasoning parser")
        named += [*chain.from_iterable(block.ends), *block.opening]
    for part, ids in (("prompt", request.tokens), ("stop_token_ids, logit_bias, logprob ids or reasoning", named)):
        if ids and not (0 <= min(ids) and max(ids) < vocab_size):
            raise RequestError(f"a token id in {part} is not in the vocabulary of {vocab_size} tokens")


class RequestChecks:
    """Checks of new requests that need no plugin.

    Args:
        info: facts about the model.
        longest: maximum number of tokens of a sequence that fit the KV pool.
        max_queued: number of sequences that may wait.
    """

    def __init__(self, info: Mapping[str, Any], longest: int, max_queued: int) -> None:
        self._info = info
        self._longest = longest
        self._max_queued = max_queued

    def check(self, request: Request, requests: OpenRequests, scheduler: Scheduler, *, held: int) -> None:
        """Raise ``RequestError`` unless ``request`` can be served.

        Args:
            request: not accepted yet.
            requests: the requests that are accepted.
            scheduler: has most of their sequences.
            held: number of the others, which step extensions hold.
        """
        if request.id in requests:
            raise RequestError(f"Duplicate request ID: {request.id!r} is still being served")
        self._check_tokens(request)
        open_requests = held + len(scheduler.waiting) + len(scheduler.running) + len(scheduler.paused)
        if open_requests >= scheduler.max_running + self._max_queued:
            raise RequestError(f"The request queue is full ({self._max_queued} waiting); try again later.", 503)

    def _check_tokens(self, request: Request) -> None:
        info, tokens = self._info, request.tokens
        if request.task not in info["tasks"]:
            raise RequestError(
                f"this model does not support the task {request.task}; its tasks: {', '.join(info['tasks'])}"
            )
        if not tokens:
            raise RequestError("the prompt has no tokens")
        room = 1 if request.task == "generate" else 0
        if len(tokens) + room > info["context_length"]:
            raise RequestError(
                f"The input ({len(tokens)} tokens) is longer than the model's context length "
                f"({info['context_length']} tokens)."
            )
        if len(tokens) + room > self._longest:
            raise RequestError(
                f"The input ({len(tokens)} tokens) does not fit the KV pool ({self._longest} tokens); "
                "the server's --max-total-tokens or --mem-fraction-static is too small for it."
            )
        check_token_ids(request, info["vocab_size"])


@dataclass(frozen=True, slots=True)
class SchedulerQueueView:
    """The waiting and the running sequences of a scheduler. A ``QueueView``."""

    scheduler: Scheduler
    _matches: dict[Sequence, Match] = field(default_factory=dict)
    """Cached prefixes of waiting sequences as found since the last step, so that many arrivals look them up once."""

    @property
    def running(self) -> Ordered[Sequence]:
        """The running sequences, the first admitted first."""
        return self.scheduler.running

    @property
    def can_preempt(self) -> bool:
        """True if running sequences may be preempted in favour of waiting ones now."""
        return self.scheduler.preemption.can_preempt

    def ahead_of(self, sequence: SequenceView) -> Iterator[Sequence]:
        """Yield the waiting sequences that the schedule policy would admit before ``sequence`` now."""
        order = self.scheduler.policy.order([*self.scheduler.waiting], self._match)
        return takewhile(lambda other: other is not sequence, order)

    def forget_matches(self) -> None:
        """Look the sequences up again from now on, as the prefix cache may have changed."""
        self._matches.clear()

    def _match(self, sequence: Sequence) -> Match:
        match = self._matches.get(sequence)
        if match is None:
            match = self._matches[sequence] = self.scheduler.allocator.match(sequence)
        return match
