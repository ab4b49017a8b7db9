"""Refusal of requests that a page of another origin makes a browser send: one check for the routes of all plugins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from re import Pattern

from starlette.datastructures import Headers
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from sglang_plug_api.answers.errors import SHOWN, ApiError, error_response

from .hosts import Host, HostPolicy
from .plugin_routes import PluginRoute

READING = frozenset({"GET", "HEAD"})
SAFE = READING | {"OPTIONS"}
"""Methods that change nothing (RFC 9110, 9.2.1)."""
FOREIGN_SITES = ("cross-site", "same-site")
"""Values of ``Sec-Fetch-Site`` for pages of other origins."""


class CheckOrigin:
    """Middleware that refuses requests of other origins' pages with 403 if they may change something.

    A request may change something if its method says so, or if its route also takes such a method. Browsers say where a
    request comes from. Accepted are requests of other programs, of addresses that a visitor types, and of this server's
    own pages; also requests that need a CORS preflight, since the preflight already refuses those of a browser.

    Args:
        app: the next ASGI application.
        allowed: ``--allow-origins``.
        policy: knows the hosts that are this server's own.
        effects: paths that change something when they are read; see ``reading_with_effects``.
    """

    def __init__(
        self, app: ASGIApp, allowed: Sequence[str], policy: HostPolicy, effects: Sequence[Pattern[str]]
    ) -> None:
        self._app = app
        self._allowed = frozenset(allowed)
        self._policy = policy
        self._effects = effects

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI call."""
        if scope["type"] == "http" and self._has_effects(scope):
            refusal = self._refusal(Headers(scope=scope))
            if refusal is not None:
                await error_response(scope, refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _has_effects(self, scope: Scope) -> bool:
        if scope["method"] not in SAFE:
            return True
        return scope["method"] in READING and any(path.match(scope["path"]) for path in self._effects)

    def _refusal(self, headers: Headers) -> ApiError | None:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if (origin is None and site in (None, "none")) or "*" in self._allowed or origin in self._allowed:
            return None
        host = Host.parse(headers.get("host", ""))
        own = site not in FOREIGN_SITES if origin is None else is_same(origin, host, site)
        if not own:
            if needs_preflight(headers):
                return None  # a browser's preflight is refused, so this is another program
            source = "another origin" if origin is None else f"the origin {origin[:SHOWN]!r}"
            return ApiError(f"pages of {source} may not call this; --allow-origins names those that may", 403)
        if host is None or not self._policy.trusts(host):
            name = headers.get("host", "")[:SHOWN]
            return ApiError(f"pages of the host {name!r} may not call this; --allowed-hosts names those that may", 403)
        return None


def needs_preflight(headers: Headers) -> bool:
    """Return True if a browser sends a preflight before these headers (Fetch standard, 2.2.2)."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or "authorization" in headers or "x-api-key" in headers


def is_same(origin: str, host: Host | None, site: str | None) -> bool:
    """Return True if a page of ``origin`` came from ``host``, or if the browser says that it is this server's.

    The scheme is not compared, since a proxy in front of the server may do TLS.
    """
    if site is not None:
        return site == "same-origin"
    scheme, separator, authority = origin.partition("://")
    page = Host.parse(authority) if separator and scheme in ("http", "https") else None
    return page is not None and host is not None and page.without_default_port == host.without_default_port


def reading_with_effects(routes: Iterable[PluginRoute]) -> list[Pattern[str]]:
    """Return the paths of routes that are read with GET and also take a method that changes something."""
    return [compile_path(route.path)[0] for route in routes if route.methods & READING and route.methods - SAFE]
