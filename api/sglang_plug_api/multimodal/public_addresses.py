"""Check whether an IP address is on the public internet, by the registries of special-purpose addresses.

The tables are IANA's registries of special-purpose addresses for IPv4 and IPv6, with multicast and reserved space. They
are written out because the classification in Python's ``ipaddress`` differs between releases and counts some entries
as global (192.88.99.0/24, parts of 192.0.0.0/24). Clouds serve instance metadata at a few further addresses, some of
which are globally routable.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from itertools import chain

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

SPECIAL_V4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # carrier-grade NAT; 100.100.100.200 is Alibaba Cloud's metadata service
            "127.0.0.0/8",  # loopback
            "169.254.0.0/16",  # link-local; 169.254.169.254 is the metadata service of most clouds
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # IETF protocol assignments; 192.0.0.192 is Oracle Cloud's metadata service
            "192.0.2.0/24",  # documentation
            "192.31.196.0/24",  # AS112
            "192.52.193.0/24",  # AMT
            "192.88.99.0/24",  # 6to4 relay anycast, deprecated
            "192.168.0.0/16",  # private
            "192.175.48.0/24",  # AS112
            "198.18.0.0/15",  # benchmarking
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and the limited broadcast address
            "168.63.129.16/32",  # Azure's metadata and configuration service, globally routable
        ),
    )
)
PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
"""The only global unicast space that IANA hands out."""
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""Addresses whose last 32 bits are the IPv4 address that a translator connects to."""
SPECIAL_V6 = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "2001::/23",  # IETF protocol assignments: Teredo, benchmarking, AMT, AS112, ORCHID, drones
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4, deprecated
            "2620:4f:8000::/48",  # AS112
            "3ffe::/16",  # 6bone, returned
            "3fff::/20",  # documentation
        ),
    )
)
"""Parts of ``PUBLIC_V6`` that are not public."""


def is_public(address: IpAddress) -> bool:
    """Return True if ``address`` is on the public internet, and every address that it embeds as well.

    6to4 and Teredo addresses are refused whatever they embed: nothing that serves images is reached through them.
    """
    return all(map(_is_public_itself, chain((address,), embedded_addresses(address))))


def embedded_addresses(address: IpAddress) -> Iterator[ipaddress.IPv4Address]:
    """Yield the IPv4 addresses that a translator or tunnel takes from an IPv6 address."""
    if isinstance(address, ipaddress.IPv4Address):
        return
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
    if address in NAT64:
        yield ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)


def _is_public_itself(address: IpAddress) -> bool:
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in SPECIAL_V4)
    if address.ipv4_mapped is not None or address in NAT64:
        return True  # the embedded address decides
    return address in PUBLIC_V6 and not any(address in network for network in SPECIAL_V6)
