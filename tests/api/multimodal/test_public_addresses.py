"""Special-purpose addresses are never public, even if they are embedded in another address."""

from __future__ import annotations

import ipaddress

from hypothesis import given
from hypothesis import strategies as st

from sglang_plug_api.multimodal.public_addresses import SPECIAL_V4, SPECIAL_V6, is_public
from sglang_plug_api.multimodal.url_rules import UrlRules

RULES = UrlRules(["*"])
special_v4 = st.sampled_from(SPECIAL_V4).flatmap(lambda network: st.ip_addresses(network=network))
special_v6 = st.sampled_from(SPECIAL_V6).flatmap(lambda network: st.ip_addresses(network=network))


def embeddings(address: ipaddress.IPv4Address) -> list[ipaddress.IPv6Address]:
    """Return the IPv6 addresses that embed ``address``: mapped, compatible, translated, NAT64, 6to4, Teredo."""
    number = int(address)
    prefixes = {"::ffff:0:0": 0, "::": 0, "::ffff:0:0:0": 0, "64:ff9b::": 0, "64:ff9b:1::": 0, "2002::": 80}
    shifted = [
        ipaddress.IPv6Address(int(ipaddress.IPv6Address(prefix)) | number << shift)
        for prefix, shift in prefixes.items()
    ]
    teredo = int(ipaddress.IPv6Address("2001::"))
    return [*shifted, ipaddress.IPv6Address(teredo | number << 64), ipaddress.IPv6Address(teredo | number ^ 0xFFFFFFFF)]


@given(special_v4)
def test_no_special_address_is_public_in_any_embedding(address: ipaddress.IPv4Address) -> None:
    for candidate in (address, *embeddings(address)):
        assert not RULES.may_connect(str(candidate)), candidate


@given(special_v6 | st.ip_addresses(v=6).filter(lambda address: not 0x2000 <= int(address) >> 112 < 0x4000))
def test_only_global_unicast_without_its_special_parts_is_public(address: ipaddress.IPv6Address) -> None:
    embedded = address.ipv4_mapped or ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    translated = address.ipv4_mapped is not None or address in ipaddress.IPv6Network("64:ff9b::/96")
    assert RULES.may_connect(str(address)) == (translated and is_public(embedded))


@given(st.ip_addresses(v=4) | st.ip_addresses(v=6, network="2000::/3"))
def test_public_addresses_are_global_for_the_standard_library_too(address: ipaddress.IPv4Address) -> None:
    assert not is_public(address) or (address.is_global and not address.is_multicast and not address.is_reserved)
