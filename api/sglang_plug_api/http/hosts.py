"""Check of the ``Host`` of requests: the defence against DNS rebinding.

When the name ``evil.example`` resolves to this machine, a browser takes the pages of that name for the server's own.
The name in ``Host`` reveals them. A page cannot rebind an IP address, so addresses are always accepted.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from sglang_plug import ConfigError
from sglang_plug_api.answers.errors import SHOWN, ApiError, error_response

HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5})?)?")
PATTERN = re.compile(r"(\*|(?:\*\.)?[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")
LOCALHOST = "localhost"
ANY = "*"


@dataclass(frozen=True, slots=True)
class Host:
    """A host name or address in lower case, and the port if one was given."""

    name: str
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> Host | None:
        """Return the host of a ``Host`` header or of an origin after its scheme; ``None`` if it is malformed."""
        match = HOST.fullmatch(text)
        if match is None:
            return None
        port = int(match[2]) if match[2] else None
        name = match[1].lower().removesuffix(".")
        return cls(name, port) if name and (port is None or port <= 65535) else None

    @property
    def is_address(self) -> bool:
        """True for an IP address, which no name server can change."""
        return _address(self.name) is not None

    @property
    def without_default_port(self) -> Host:
        """The same host without the ports that browsers leave out."""
        return Host(self.name) if self.port in (80, 443) else self


class HostPolicy:
    """The hosts that requests may name.

    Args:
        allowed: ``--allowed-hosts``: ``example.com``, ``*.example.com``, ``example.com:8080``, ``*``.
        listening: ``--host``.

    Raises ``ConfigError`` for an entry that no ``Host`` could match.
    """

    def __init__(self, allowed: Sequence[str], listening: str) -> None:
        self._patterns = [_pattern(entry) for entry in allowed]
        self._own = {LOCALHOST, listening.lower(), socket.gethostname().lower()}
        self._accepts_any = not allowed and not _is_loopback(listening)

    def accepts(self, host: Host) -> bool:
        """Return True if a request may name ``host``: any, if the server listens beyond loopback without a list."""
        return self._accepts_any or self.trusts(host)

    def trusts(self, host: Host) -> bool:
        """Return True if ``host`` is known to mean this server, so that its pages are this server's own."""
        return host.is_address or host.name in self._own or any(_matches(pattern, host) for pattern in self._patterns)


class CheckHost:
    """Middleware that refuses requests whose ``Host`` is malformed (400) or not accepted (421)."""

    def __init__(self, app: ASGIApp, policy: HostPolicy) -> None:
        self._app, self._policy = app, policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI call."""
        if scope["type"] == "http" and (refusal := self._refusal(host_header(scope))) is not None:
            await error_response(scope, refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, text: str | None) -> ApiError | None:
        if text is None:
            return None  # HTTP/1.0: not a browser
        host = Host.parse(text)
        if host is None:
            return ApiError(f"the Host header is not a host: {text[:SHOWN]!r}")
        if self._policy.accepts(host):
            return None
        return ApiError(
            f"the server does not answer to the host {text[:SHOWN]!r}; start it with --allowed-hosts {host.name} if it "
            "should",
            421,
        )


def host_header(scope: Scope) -> str | None:
    """Return the ``Host`` of a request, or ``None`` if it has none."""
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), None)


def _pattern(entry: str) -> Host:
    match = PATTERN.fullmatch(entry)
    if match is None or (match[2] is not None and int(match[2]) > 65535):
        raise ConfigError(
            f"--allowed-hosts: {entry!r} is not a host; write it as example.com, *.example.com, example.com:8080 or *"
        )
    return Host(match[1].lower().removesuffix("."), int(match[2]) if match[2] else None)


def _matches(pattern: Host, host: Host) -> bool:
    if pattern.port is not None and pattern.port != host.port:
        return False
    if pattern.name.startswith("*."):
        return host.name.endswith(pattern.name[1:]) and host.name != pattern.name[2:]
    return pattern.name in (ANY, host.name)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


def _is_loopback(listening: str) -> bool:
    address = _address(listening)
    return listening.lower() == LOCALHOST if address is None else address.is_loopback
