"""The requests that the engine has taken and not ended, and what they keep of the host's memory."""

from __future__ import annotations

from sglang_plug.request import Request


class OpenRequests:
    """Requests by their ids, with the bytes of their images."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self.media_bytes = 0
        """Of the images of all of them, prepared for the model."""

    def __contains__(self, id: str) -> bool:
        return id in self._sizes

    def add(self, request: Request) -> None:
        """``request`` has been taken; none with its id is open."""
        size = media_bytes(request)
        self._sizes[request.id] = size
        self.media_bytes += size

    def end(self, id: str) -> None:
        """The request is over, or has never been open."""
        self.media_bytes -= self._sizes.pop(id, 0)


def media_bytes(request: Request) -> int:
    """Bytes of the images of one request."""
    return sum(one.size for one in request.media)
