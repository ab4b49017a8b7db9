"""The contract of routing policies: which replica serves a request.

Every policy chooses a replica (``RoutingPolicy``). A policy that remembers what replicas have in their prefix caches
also implements ``CacheAwareRouting``. Both are called from the event loop that serves all requests, once per request
and never per token, so they must answer at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Protocol, runtime_checkable

from sglang_plug.contracts.request import Request
from sglang_plug.contracts.serving.observer import StepStats


class ReplicaLoad(Protocol):
    """A replica that serves, and its load, as a routing policy sees it."""

    @property
    def replica(self) -> int:
        """The replica's number, which ``RoutingPolicy.choose`` returns."""

    @property
    def requests(self) -> int:
        """Requests in flight that this server routed to it."""

    @property
    def tokens(self) -> int:
        """Tokens of these requests: their prompts, and what was generated so far."""

    @property
    def latest(self) -> StepStats | None:
        """Statistics of its last step, requests of other servers included; ``None`` before its first step."""


class RoutingPolicy(Protocol):
    """Decides which replica serves a request."""

    def choose(self, request: Request, replicas: Sequence[ReplicaLoad]) -> int:
        """Return the ``replica`` of one of ``replicas``.

        Args:
            request: a request that is about to be submitted; one that is retried after a failure comes again.
            replicas: those that serve now, in the order of their numbers; at least two.
        """


@runtime_checkable
class CacheAwareRouting(Protocol):
    """An optional method of a routing policy that remembers the prefixes that replicas have computed."""

    def forget(self, replica: int) -> None:
        """The replica's prefix cache is empty now: it was flushed, or the replica is started again."""


def prefix_digests(request: Request, lengths: Iterable[int]) -> Iterator[int]:
    """Yield a digest of the first tokens of a prompt for each of ``lengths``, as far as the prompt has so many tokens.

    Two digests of 64 bits are equal if, and practically only if, the prefixes could share cached tokens: images,
    adapter and salt count like the tokens do. They are the same in every process with one release of Python. They
    choose between replicas and protect nothing: who wants equal digests of different prompts can find some.

    Args:
        request: the request whose prompt it is.
        lengths: numbers of tokens, in ascending order.
    """
    tokens, begin = request.tokens, 0
    media = sorted((item.start, int.from_bytes(item.digest, "little")) for item in request.media)
    name = hashlib.blake2b(repr((request.salt, request.adapter)).encode(), digest_size=8).digest()
    state = int.from_bytes(name, "little")
    for end in takewhile(len(tokens).__ge__, lengths):
        state = hash((state, tokens[begin:end]))  # of integers only: others would have another hash in each process
        while media and media[0][0] < end:
            state = hash((state, media.pop(0)[1]))
        yield state
        begin = end
