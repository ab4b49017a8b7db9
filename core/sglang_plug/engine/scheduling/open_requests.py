"""The requests that the engine has accepted and not finished, and the host memory that their images use."""

from __future__ import annotations

from itertools import chain

from sglang_plug.contracts.request import Request, RequestError


class OpenRequests:
    """Requests by their ids, with the bytes of their images."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self.media_bytes = 0
        """Total size of the preprocessed images of all open requests."""

    def __contains__(self, id: str) -> bool:
        return id in self._sizes

    def add(self, request: Request) -> None:
        """Record that ``request`` has been accepted; no request with its id may be open."""
        size = media_bytes(request)
        self._sizes[request.id] = size
        self.media_bytes += size

    def end(self, id: str) -> None:
        """Record that the request is finished; an unknown id is ignored."""
        self.media_bytes -= self._sizes.pop(id, 0)


def media_bytes(request: Request) -> int:
    """Return the number of bytes of the images of one request."""
    return sum(media.size for media in request.media)


def check_token_ids(request: Request, vocab_size: int) -> None:
    """Raise ``RequestError`` for an id that is not in the vocabulary, and for an empty end of reasoning.

    Ids from outside index tensors, which checks nothing.
    """
    named = [*request.params.stop_token_ids, *request.params.logit_bias]
    named += request.logprobs.ids if request.logprobs else ()
    if (prefix := request.reasoning_prefix) is not None:
        if not prefix.ends or not all(prefix.ends):
            raise RequestError("a reasoning prefix needs what ends it")
        named += [*chain.from_iterable(prefix.ends), *prefix.opening]
    if (block := request.reasoning) is not None:
        if not all(block.ends):
            raise RequestError("an end of reasoning has no tokens")
        named += [*chain.from_iterable(block.ends), *block.opening]
    for field, ids in (("prompt", request.tokens), ("stop_token_ids, logit_bias, logprob ids or reasoning", named)):
        if ids and not (0 <= min(ids) and max(ids) < vocab_size):
            raise RequestError(f"a token id in {field} is not in the vocabulary of {vocab_size} tokens")
