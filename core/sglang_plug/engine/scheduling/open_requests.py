"""The requests that the engine has accepted and not finished, and the host memory that their images use."""

from __future__ import annotations

from sglang_plug.contracts.request import Request


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
