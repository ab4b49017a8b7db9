"""Rules for the URLs that images may be fetched from: hosts, ports and IP addresses."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from sglang_plug import ConfigError, MediaError
from sglang_plug_api.answers.errors import SHOWN

from .public_addresses import is_public

MAX_URL_LENGTH = 8192
"""Longest URL, in characters."""
PORTS = {"http": 80, "https": 443}
ANY = "*"
NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class MediaUrl:
    """A URL that an image may be fetched from. It is parsed once, so that the checked URL is the requested one."""

    url: httpx.URL
    host: str
    """Host in ASCII and lower case, without a trailing dot."""
    port: int

    def with_ip(self, ip: str) -> httpx.URL:
        """Return the URL with an IP address instead of the host name."""
        return self.url.copy_with(host=ip)

    def redirect_target(self, location: str) -> str:
        """Return the URL that a redirect leads to. Raises ``MediaError`` if it is invalid."""
        if "\\" in location:
            raise MediaError(f"{self.host} redirects to an address that is not valid")
        try:
            return str(self.url.join(location))
        except httpx.InvalidURL:
            raise MediaError(f"{self.host} redirects to an address that is not valid") from None


@dataclass(frozen=True, slots=True)
class _Entry:
    """One allowed host."""

    name: str
    subdomains: bool
    port: int | None

    def matches(self, host: str, port: int) -> bool:
        if self.port != port and not (self.port is None and port in PORTS.values()):
            return False
        return self.name in (ANY, host) if not self.subdomains else host.endswith(f".{self.name}")


class UrlRules:
    """The URLs and networks that the operator allows.

    Args:
        domains: hosts: ``example.com``, ``*.example.com`` (all subdomains), ``*`` (all); with a port other than 80 and
            443: ``example.com:8080``. Empty: nothing is fetched.
        networks: address ranges, such as ``10.0.0.0/8``, that connections may go to although they are not public.

    Raises ``ConfigError`` for an invalid host or range.
    """

    def __init__(self, domains: Sequence[str] = (), networks: Sequence[str] = ()) -> None:
        self._entries = [_entry(domain) for domain in domains]
        self._networks = [_network(network) for network in networks]

    @property
    def is_empty(self) -> bool:
        """True if no host is allowed."""
        return not self._entries

    def parse(self, text: str) -> MediaUrl:
        """Parse an ``http`` or ``https`` URL. Raises ``MediaError`` if it is not allowed, or not valid."""
        address = _parsed(text)
        if not any(entry.matches(address.host, address.port) for entry in self._entries):
            host = address.host if address.port in PORTS.values() else f"{address.host}:{address.port}"
            raise MediaError(f"this server does not fetch from {host[:SHOWN]!r} (--allowed-media-domains)")
        return address

    def may_connect(self, ip: str) -> bool:
        """Return True if ``ip`` is public or in an allowed network."""
        address = ipaddress.ip_address(ip.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks) or is_public(address)


def _parsed(text: str) -> MediaUrl:
    if len(text) > MAX_URL_LENGTH:
        raise MediaError(f"an address has at most {MAX_URL_LENGTH} characters, not {len(text)}")
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
    if not (NAME.fullmatch(host) or _is_ip(host)) or port > 65535:
        raise MediaError(f"{text[:SHOWN]!r} has no valid host")
    return MediaUrl(url, host, port)


def _entry(text: str) -> _Entry:
    name = text.strip().lower()
    subdomains, name = name.startswith("*."), name.removeprefix("*.")
    any_host = name == ANY or name.startswith(f"{ANY}:")
    try:
        url = httpx.URL(f"media://{'any' + name[1:] if any_host else name}")  # a scheme without a default port
        host = url.raw_host.decode("ascii").removesuffix(".")
    except httpx.InvalidURL:
        host, url = "", httpx.URL("")
    if not (NAME.fullmatch(host) or _is_ip(host)) or url.userinfo or url.path.strip("/") or url.query:
        raise ConfigError(
            f"--allowed-media-domains: {text!r} is not a host; write example.com, *.example.com, example.com:8080 or *"
        )
    return _Entry(ANY if any_host else host, subdomains, url.port)


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text.strip())
    except ValueError as error:
        raise ConfigError(f"--allowed-media-networks: {error}; write a range such as 10.0.0.0/8") from None


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return "%" not in host
