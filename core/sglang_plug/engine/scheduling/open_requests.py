"""The requests that the engine has accepted and not finished, and the checks before it accepts one more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import chain
from typing import Any

from sglang_plug.contracts.request import Request, RequestError

from .scheduler import Scheduler

MOST_MEDIA_BYTES = 8 << 30
"""Largest total size of the preprocessed images of all requests in the engine."""


class OpenRequests:
    """Requests by their ids, with the bytes of their images and the number of requests of each caller."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[int, str]] = {}
        self._callers = Counter[str]()
        self.media_bytes = 0
        """Total size of the preprocessed images of all open requests."""

    def __contains__(self, id: str) -> bool:
        return id in self._open

    def of_caller(self, caller: str) -> int:
        """Return the number of open requests of a caller."""
        return self._callers[caller]

    def add(self, request: Request) -> None:
        """Record that ``request`` has been accepted; no request with its id may be open."""
        size = media_bytes(request)
        self._open[request.id] = size, request.caller
        self._callers[request.caller] += 1
        self.media_bytes += size

    def end(self, id: str) -> None:
        """Record that the request is finished; an unknown id is ignored."""
        if (entry := self._open.pop(id, None)) is None:
            return
        size, caller = entry
        self.media_bytes -= size
        self._callers[caller] -= 1
        if not self._callers[caller]:
            del self._callers[caller]


def media_bytes(request: Request) -> int:
    """Return the number of bytes of the images of one request."""
    return sum(media.size for media in request.media)


class RequestChecks:
    """Checks of new requests that need no plugin.

    Args:
        info: facts about the model.
        longest: most tokens of a sequence that fit the KV pool.
        max_queued: number of sequences that may wait.
        max_queued_per_caller: number of sequences of one caller that may wait; ``None``: no limit of its own.
    """

    def __init__(
        self, info: Mapping[str, Any], longest: int, max_queued: int, max_queued_per_caller: int | None
    ) -> None:
        self._info, self._longest = info, longest
        self._max_queued, self._max_queued_per_caller = max_queued, max_queued_per_caller

    def check(self, request: Request, requests: OpenRequests, scheduler: Scheduler, *, held: int) -> None:
        """Raise ``RequestError`` unless ``request`` can be served.

        Args:
            request: not accepted yet.
            requests: the requests that are accepted.
            scheduler: has most of their sequences.
            held: number of the others, which wait for their grammars.
        """
        if request.id in requests:
            raise RequestError(f"Duplicate request ID: {request.id!r} is still being served")
        self._check_tokens(request)
        _check_media(request, requests)
        open_requests = held + len(scheduler.waiting) + len(scheduler.running) + len(scheduler.paused)
        if open_requests >= scheduler.max_running + self._max_queued:
            raise RequestError(f"The request queue is full ({self._max_queued} waiting); try again later.", 503)
        limit = self._max_queued_per_caller
        if limit is None or requests.of_caller(request.caller) < limit:
            return
        running = sum(one.caller == request.caller for one in scheduler.running)
        if requests.of_caller(request.caller) - running >= limit:
            raise RequestError(f"You have {limit} waiting requests, which is the most; try again later.", 429)

    def _check_tokens(self, request: Request) -> None:
        info, tokens = self._info, request.tokens
        if request.task not in info["tasks"]:
            raise RequestError(f"the model cannot {request.task}; it can: {', '.join(info['tasks'])}")
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
        named = [*request.params.stop_token_ids, *request.params.logit_bias]
        named += request.logprobs.ids if request.logprobs else ()
        if (reasoning_prefix := request.reasoning_prefix) is not None:
            if not reasoning_prefix.ends or not all(reasoning_prefix.ends):
                raise RequestError("a preamble needs what ends it")
            named += [*chain.from_iterable(reasoning_prefix.ends), *reasoning_prefix.opening]
        for field, ids in (("prompt", tokens), ("stop_token_ids, logit_bias, logprob ids or preamble", named)):
            if ids and not (0 <= min(ids) and max(ids) < info["vocab_size"]):
                raise RequestError(f"a token id in {field} is not in the vocabulary of {info['vocab_size']} tokens")


def _check_media(request: Request, requests: OpenRequests) -> None:
    """Raise ``RequestError`` if the images of all open requests would take too much of the host's memory."""
    if not request.media:
        return
    size = requests.media_bytes + media_bytes(request)
    if size > MOST_MEDIA_BYTES:
        raise RequestError(f"Too many images are waiting ({size} bytes with these); try again later.", 503)
