"""Fetching of images by URL, without connections or redirects to addresses that are not allowed."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor

import httpx

from sglang_plug import MediaError

from .url_rules import MediaUrl, UrlRules

MAX_REDIRECTS = 3
MAX_IPS = 4
"""Maximum number of IP addresses of one host that are tried."""
CONNECT_TIMEOUT = 5.0
"""Longest time for a connection, in seconds."""
LOOKUP_THREADS = 8
"""Concurrent name lookups: the system's resolver may be slow, and cannot be interrupted."""
REDIRECTS = (301, 302, 303, 307, 308)
HEADERS = {"accept": "image/*", "accept-encoding": "identity", "user-agent": "sglang-plug"}


class ByteBudget:
    """Bytes that may still be read for one request.

    Args:
        per_file: largest file.
        total: largest sum of all files.
    """

    def __init__(self, per_file: int, total: int) -> None:
        self.per_file = per_file
        self.total = total
        self._remaining = total

    def take(self, count: int, so_far: int) -> None:
        """Count ``count`` more bytes of a file that has ``so_far`` with them. Raises ``MediaError``."""
        self._remaining -= count
        if so_far > self.per_file:
            raise MediaError(f"an image has more than {self.per_file} bytes, the maximum")
        if self._remaining < 0:
            raise MediaError(f"the images that are to be fetched have more than {self.total} bytes together")


Resolve = Callable[[str, int], list[str]]
"""Returns the IP addresses of a host and a port. Raises ``OSError`` if there is no such host."""


def resolve_host(host: str, port: int) -> list[str]:
    """Return the IP addresses of a host, in the system's order."""
    return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


class Fetcher:
    """Fetches files by URL.

    It looks up every name itself and connects to an IP address that it checked, so that a name cannot mean another host
    a moment later. It uses no proxy, cookie or credential, and undoes no content encoding.

    Args:
        rules: the allowed URLs.
        timeout: seconds for one URL, redirects included.
        resolve: looks up hosts; it is called in threads.
    """

    def __init__(self, rules: UrlRules, timeout: float, resolve: Resolve = resolve_host) -> None:
        self._rules = rules
        self._timeout = timeout
        self._resolve = resolve
        self._lookups = ThreadPoolExecutor(LOOKUP_THREADS, "image-lookup")
        self._trust: ssl.SSLContext | None = None

    async def fetch(self, text: str, budget: ByteBudget) -> bytes:
        """Return the file at a URL. Raises ``MediaError``, which says what is wrong."""
        try:
            async with asyncio.timeout(self._timeout):
                for _ in range(MAX_REDIRECTS + 1):
                    answer = await self._request(self._rules.parse(text), budget)
                    if isinstance(answer, bytes):
                        return answer
                    text = answer
        except TimeoutError:
            raise MediaError(f"fetching it took longer than {self._timeout:g} seconds") from None
        raise MediaError(f"its address redirects more than {MAX_REDIRECTS} times")

    async def _request(self, address: MediaUrl, budget: ByteBudget) -> bytes | str:
        """Return the file, or the URL that it redirects to."""
        ips = await self._look_up(address)
        trust = await self._certificates()
        async with httpx.AsyncClient(verify=trust, trust_env=False, timeout=self._limits()) as client:
            for ip in ips:
                try:
                    return await self._request_from(client, address, ip, budget)
                except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                    if ip == ips[-1]:
                        raise self._failure(address, error) from None
                except httpx.HTTPError as error:
                    raise self._failure(address, error) from None
        raise AssertionError("a host has an IP address")

    async def _request_from(
        self, client: httpx.AsyncClient, address: MediaUrl, ip: str, budget: ByteBudget
    ) -> bytes | str:
        headers = {**HEADERS, "host": address.url.netloc.decode("ascii")}
        names = {"sni_hostname": address.host}
        async with client.stream("GET", address.with_ip(ip), headers=headers, extensions=names) as answer:
            if answer.status_code in REDIRECTS and "location" in answer.headers:
                return address.redirect_target(answer.headers["location"])
            if answer.status_code != 200:
                raise MediaError(f"{address.host} answers with status {answer.status_code}")
            if answer.headers.get("content-encoding", "identity") != "identity":
                raise MediaError(f"{address.host} sends it compressed once more, although asked not to")
            _check_length(answer, budget)
            return await _read_all(answer.aiter_raw(), budget)

    async def _look_up(self, address: MediaUrl) -> list[str]:
        """Return the IP addresses of a host that a connection may go to, in the system's order."""
        loop = asyncio.get_running_loop()
        try:
            resolved = await loop.run_in_executor(self._lookups, self._resolve, address.host, address.port)
        except (OSError, UnicodeError):
            raise MediaError(f"there is no host {address.host!r}") from None
        ips = list(dict.fromkeys(ip for ip in resolved if self._rules.may_connect(ip)))
        if not ips:
            raise MediaError(
                f"{address.host!r} is not at a public address, and this server fetches from no other "
                "(--allowed-media-networks)"
            )
        return ips[:MAX_IPS]

    async def _certificates(self) -> ssl.SSLContext:
        if self._trust is None:  # reading it takes time
            self._trust = await asyncio.to_thread(httpx.create_ssl_context)
        return self._trust

    def _limits(self) -> httpx.Timeout:
        return httpx.Timeout(self._timeout, connect=min(CONNECT_TIMEOUT, self._timeout))

    def _failure(self, address: MediaUrl, error: httpx.HTTPError) -> MediaError:
        return MediaError(f"it cannot be fetched from {address.host!r}: {str(error)[:200] or type(error).__name__}")


def _check_length(answer: httpx.Response, budget: ByteBudget) -> None:
    length = answer.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and len(length) < 20 and int(length) > budget.per_file:
        raise MediaError(f"an image has more than {budget.per_file} bytes, the maximum")


async def _read_all(chunks: AsyncIterator[bytes], budget: ByteBudget) -> bytes:
    content = bytearray()
    async for chunk in chunks:
        budget.take(len(chunk), len(content) + len(chunk))
        content += chunk
    return bytes(content)
