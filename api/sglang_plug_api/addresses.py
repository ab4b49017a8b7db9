"""Which addresses images may be fetched from: names, ports, and where a connection may lead."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import httpx

from sglang_plug import ConfigError, MediaError

from .errors import SHOWN

LONGEST = 8192
"""Characters of an address."""
PORTS = {"http": 80, "https": 443}
ANY = "*"
NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Address:
    """An address that an image may be fetched from, taken apart once: what was checked is what is asked."""

    url: httpx.URL
    host: str
    """In ASCII, lower case, without a dot at the end."""
    port: int

    def at(self, ip: str) -> httpx.URL:
        """The same, with the host's number instead of its name."""
        return self.url.copy_with(host=ip)

    def joined(self, location: str) -> str:
        """What a redirect leads to. Raises ``MediaError`` if it is none."""
        if "\\" in location:
            raise MediaError(f"{self.host} redirects to an address that is not valid")
        try:
            return str(self.url.join(location))
        except httpx.InvalidURL:
            raise MediaError(f"{self.host} redirects to an address that is not valid") from None


@dataclass(frozen=True, slots=True)
class _Entry:
    """One of the allowed hosts."""

    name: str
    below: bool
    port: int | None

    def has(self, host: str, port: int) -> bool:
        if self.port != port and not (self.port is None and port in PORTS.values()):
            return False
        return self.name in (ANY, host) if not self.below else host.endswith(f".{self.name}")


class AddressRules:
    """What an operator allows.

    Args:
        domains: hosts: ``example.com``, ``*.example.com`` (all below it), ``*`` (all); with a port, if it is none of 80
            and 443: ``example.com:8080``. None: nothing is fetched.
        networks: ranges, such as ``10.0.0.0/8``, that connections may lead to although they are not public.

    Raises ``ConfigError`` for what is no host or no range.
    """

    def __init__(self, domains: Sequence[str] = (), networks: Sequence[str] = ()) -> None:
        self._entries = [_entry(one) for one in domains]
        self._networks = [_network(one) for one in networks]

    @property
    def is_empty(self) -> bool:
        """True if nothing is allowed."""
        return not self._entries

    def read(self, text: str) -> Address:
        """The parts of an ``http`` or ``https`` address. Raises ``MediaError`` if it is not allowed, or not valid."""
        address = _parsed(text)
        if not any(entry.has(address.host, address.port) for entry in self._entries):
            where = address.host if address.port in PORTS.values() else f"{address.host}:{address.port}"
            raise MediaError(f"this server does not fetch from {where[:SHOWN]!r} (--allowed-media-domains)")
        return address

    def may_connect(self, ip: str) -> bool:
        """True if ``ip`` is public, or in one of the networks that were allowed."""
        found = ipaddress.ip_address(ip.partition("%")[0])
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        return any(found in network for network in self._networks) or all(map(_is_public, _meant(found)))


def _parsed(text: str) -> Address:
    if len(text) > LONGEST:
        raise MediaError(f"an address has at most {LONGEST} characters, not {len(text)}")
    if "\\" in text or any(character.isspace() for character in text):
        raise MediaError("an address has no backslashes and no blanks")
    try:
        url = httpx.URL(text)
        host = url.raw_host.decode("ascii").lower().removesuffix(".")
        default = PORTS[url.scheme]
    except (httpx.InvalidURL, KeyError, ValueError):
        raise MediaError(f"{text[:SHOWN]!r} is not a valid http or https address") from None
    if url.userinfo:
        raise MediaError("an address with a user name or password is not fetched")
    port = default if url.port is None else url.port
    if not (NAME.fullmatch(host) or _is_number(host)) or port > 65535:
        raise MediaError(f"{text[:SHOWN]!r} has no valid host")
    return Address(url, host, port)


def _entry(text: str) -> _Entry:
    name = text.strip().lower()
    below, name = name.startswith("*."), name.removeprefix("*.")
    every = name == ANY or name.startswith(f"{ANY}:")
    try:
        url = httpx.URL(f"media://{'any' + name[1:] if every else name}")  # a scheme without a port of its own
        host = url.raw_host.decode("ascii").removesuffix(".")
    except httpx.InvalidURL:
        host, url = "", httpx.URL("")
    if not (NAME.fullmatch(host) or _is_number(host)) or url.userinfo or url.path.strip("/") or url.query:
        raise ConfigError(
            f"--allowed-media-domains: {text!r} is no host; write example.com, *.example.com, example.com:8080 or *"
        )
    return _Entry(ANY if every else host, below, url.port)


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text.strip())
    except ValueError as error:
        raise ConfigError(f"--allowed-media-networks: {error}; write a range such as 10.0.0.0/8") from None


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return "%" not in host


def _meant(ip: IpAddress) -> Iterator[IpAddress]:
    """``ip``, and those that it carries on their way through a tunnel."""
    yield ip
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.sixtofour is not None:
            yield ip.sixtofour
        yield from ip.teredo or ()


def _is_public(ip: IpAddress) -> bool:
    local = isinstance(ip, ipaddress.IPv6Address) and ip.is_site_local
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or local)
