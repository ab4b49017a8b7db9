"""Images from addresses: fetched without following anybody to a place that was not allowed."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from sglang_plug import MediaError

from .addresses import Address, AddressRules

MOST_REDIRECTS = 3
MOST_NUMBERS = 4
"""Of a host with several numbers so many are tried."""
CONNECT_TIMEOUT = 5.0
"""Seconds for a connection, at most."""
LOOKUPS = 8
"""Names that are looked up together: the system's resolver may take long, and cannot be interrupted."""
REDIRECTS = (301, 302, 303, 307, 308)
HEADERS = {"accept": "image/*", "accept-encoding": "identity", "user-agent": "sglang-plug"}


class Allowance:
    """Bytes that may still be read for one request.

    Args:
        each: most of one file.
        total: most of all together.
    """

    def __init__(self, each: int, total: int) -> None:
        self.each, self.total, self._left = each, total, total

    def take(self, count: int, so_far: int) -> None:
        """Count ``count`` bytes more of a file that has ``so_far`` with them. Raises ``MediaError``."""
        self._left -= count
        if so_far > self.each:
            raise MediaError(f"an image has more than {self.each} bytes, the most that is read")
        if self._left < 0:
            raise MediaError(f"the images that are to be fetched have more than {self.total} bytes together")


class Fetcher:
    """Reads what addresses lead to.

    Every name is looked up here, and the connection made to a number that was checked, so that a name cannot mean
    another place a moment later. No proxy, no cookie, no credential is used, and no encoding is undone.

    Args:
        rules: what may be fetched.
        timeout: seconds for one address, redirects included.
    """

    def __init__(self, rules: AddressRules, timeout: float) -> None:
        self._rules, self._timeout = rules, timeout
        self._lookups = ThreadPoolExecutor(LOOKUPS, "image-lookup")
        self._trust: ssl.SSLContext | None = None

    async def fetch(self, text: str, allowance: Allowance) -> bytes:
        """The file at an address. Raises ``MediaError``, which says what is wrong."""
        try:
            async with asyncio.timeout(self._timeout):
                for _ in range(MOST_REDIRECTS + 1):
                    found = await self._ask(self._rules.read(text), allowance)
                    if isinstance(found, bytes):
                        return found
                    text = found
        except TimeoutError:
            raise MediaError(f"fetching it took longer than {self._timeout:g} seconds") from None
        raise MediaError(f"its address redirects more than {MOST_REDIRECTS} times")

    async def _ask(self, address: Address, allowance: Allowance) -> bytes | str:
        """The file, or where to ask instead."""
        numbers = await self._look_up(address)
        trust = await self._certificates()
        async with httpx.AsyncClient(verify=trust, trust_env=False, timeout=self._limits()) as client:
            for number in numbers:
                try:
                    return await self._ask_at(client, address, number, allowance)
                except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                    if number == numbers[-1]:
                        raise self._failure(address, error) from None
                except httpx.HTTPError as error:
                    raise self._failure(address, error) from None
        raise AssertionError("a host has a number")

    async def _ask_at(
        self, client: httpx.AsyncClient, address: Address, number: str, allowance: Allowance
    ) -> bytes | str:
        headers = {**HEADERS, "host": address.url.netloc.decode("ascii")}
        names = {"sni_hostname": address.host}
        async with client.stream("GET", address.at(number), headers=headers, extensions=names) as answer:
            if answer.status_code in REDIRECTS and "location" in answer.headers:
                return address.joined(answer.headers["location"])
            if answer.status_code != 200:
                raise MediaError(f"{address.host} answers with status {answer.status_code}")
            if answer.headers.get("content-encoding", "identity") != "identity":
                raise MediaError(f"{address.host} sends it compressed once more, although asked not to")
            _check_length(answer, allowance)
            return await _whole(answer.aiter_raw(), allowance)

    async def _look_up(self, address: Address) -> list[str]:
        """Numbers of a host that a connection may lead to, in the system's order."""
        loop = asyncio.get_running_loop()
        try:
            found: list[Any] = await loop.run_in_executor(self._lookups, _numbers, address.host, address.port)
        except (OSError, UnicodeError):
            raise MediaError(f"there is no host {address.host!r}") from None
        numbers = list(dict.fromkeys(number for number in found if self._rules.may_connect(number)))
        if not numbers:
            raise MediaError(
                f"{address.host!r} is not at a public address, and this server fetches from no other "
                "(--allowed-media-networks)"
            )
        return numbers[:MOST_NUMBERS]

    async def _certificates(self) -> ssl.SSLContext:
        if self._trust is None:  # takes a while to read
            self._trust = await asyncio.to_thread(httpx.create_ssl_context)
        return self._trust

    def _limits(self) -> httpx.Timeout:
        return httpx.Timeout(self._timeout, connect=min(CONNECT_TIMEOUT, self._timeout))

    def _failure(self, address: Address, error: httpx.HTTPError) -> MediaError:
        return MediaError(f"it cannot be fetched from {address.host!r}: {str(error)[:200] or type(error).__name__}")


def _numbers(host: str, port: int) -> list[str]:
    return [str(one[4][0]) for one in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def _check_length(answer: httpx.Response, allowance: Allowance) -> None:
    told = answer.headers.get("content-length", "")
    if told.isascii() and told.isdigit() and len(told) < 20 and int(told) > allowance.each:
        raise MediaError(f"an image has more than {allowance.each} bytes, the most that is read")


async def _whole(chunks: AsyncIterator[bytes], allowance: Allowance) -> bytes:
    found = bytearray()
    async for chunk in chunks:
        allowance.take(len(chunk), len(found) + len(chunk))
        found += chunk
    return bytes(found)
