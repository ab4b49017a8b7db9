"""Tests of the host policy: the values that requests may have in their ``Host`` header."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_plug import ConfigError
from sglang_plug_api.http.hosts import Host, HostPolicy

ALWAYS = ["localhost", "LOCALHOST:30000", "localhost.", "127.0.0.1", "127.0.0.1:8080", "[::1]:30000", "10.1.2.3:30000"]
NAMES = ["evil.example", "evil.example:30000", "localhost.evil.example", "evil-localhost", "127.0.0.1.evil.example"]


def accepts(policy: HostPolicy, text: str) -> bool:
    host = Host.parse(text)
    assert host is not None
    return policy.accepts(host)


def trusts(policy: HostPolicy, text: str) -> bool:
    host = Host.parse(text)
    assert host is not None
    return policy.trusts(host)


@pytest.mark.parametrize("listening", ["127.0.0.1", "127.0.0.9", "localhost", "::1"])
def test_on_loopback_only_addresses_and_localhost_are_accepted(listening: str) -> None:
    policy = HostPolicy([], listening)
    assert all(accepts(policy, text) for text in ALWAYS)
    assert not any(accepts(policy, text) for text in NAMES)


@pytest.mark.parametrize("listening", ["0.0.0.0", "::", "10.1.2.3", ""])
def test_elsewhere_any_name_is_accepted_but_only_known_ones_are_trusted(listening: str) -> None:
    policy = HostPolicy([], listening)
    assert all(accepts(policy, text) and trusts(policy, text) for text in ALWAYS)
    assert all(accepts(policy, text) and not trusts(policy, text) for text in NAMES)


@pytest.mark.parametrize("listening", ["127.0.0.1", "0.0.0.0"])
def test_a_list_is_complete_wherever_the_server_listens(listening: str) -> None:
    policy = HostPolicy(["llm.example.com", "*.internal", "other.example:8080"], listening)
    allowed = ["llm.example.com", "LLM.example.com.:443", "a.internal", "a.b.internal:1", "other.example:8080"]
    for text in [*ALWAYS, *allowed]:
        assert accepts(policy, text) and trusts(policy, text), text
    for text in [
        *NAMES,
        "example.com",
        "xllm.example.com",
        "internal",
        "xinternal",
        "other.example",
        "other.example:1",
    ]:
        assert not accepts(policy, text), text


def test_the_address_of_the_server_is_its_name() -> None:
    assert accepts(HostPolicy(["x.example"], "gpu.example"), "gpu.example:30000")


def test_a_star_allows_every_host() -> None:
    assert all(trusts(HostPolicy(["*"], "127.0.0.1"), text) for text in NAMES)


@pytest.mark.parametrize(
    "entry", ["http://a.example", "a.example/", "a b", "", "*.", "a.*", "**", "a:b", "a:99999", "::1"]
)
def test_an_entry_that_no_host_matches_is_refused_at_the_start(entry: str) -> None:
    with pytest.raises(ConfigError, match="--allowed-hosts: .* is not a host"):
        HostPolicy([entry], "127.0.0.1")


@pytest.mark.parametrize(
    "text", ["", "a b", "a/b", "user@a", "a:b", "a:99999", "[::1", "::1", "a,b", "é", "a\x00", "."]
)
def test_a_malformed_host_is_none(text: str) -> None:
    assert Host.parse(text) is None


@given(st.text(max_size=20))
def test_any_text_is_a_host_or_none(text: str) -> None:
    host = Host.parse(text)
    assert host is None or (host.name == host.name.lower() and host.name)
