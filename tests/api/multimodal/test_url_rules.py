"""URLs need an allowed host and an allowed network, and both rules parse the URL in the same way."""

from __future__ import annotations

import pytest

from sglang_plug import ConfigError, MediaError
from sglang_plug_api.multimodal.url_rules import MAX_URL_LENGTH, UrlRules

RULES = UrlRules(["example.com", "*.cdn.net", "odd.org:8080", "[2001:db8::1]", "bücher.de"])


@pytest.mark.parametrize(
    "text, host, port",
    [
        ("http://example.com/a.png", "example.com", 80),
        ("HTTPS://EXAMPLE.com./a.png?x=1#y", "example.com", 443),
        ("http://example.com:443/", "example.com", 443),
        ("https://a.b.cdn.net/", "a.b.cdn.net", 443),
        ("http://odd.org:8080/", "odd.org", 8080),
        ("http://[2001:db8::1]/a", "2001:db8::1", 80),
        ("https://bücher.de/ü.png", "xn--bcher-kva.de", 443),
    ],
)
def test_hosts_that_were_named(text: str, host: str, port: int) -> None:
    parsed = RULES.parse(text)
    assert (parsed.host, parsed.port) == (host, port)
    pinned = parsed.with_ip("192.0.2.1")
    assert (pinned.host, pinned.port, pinned.raw_path) == ("192.0.2.1", parsed.url.port, parsed.url.raw_path)


@pytest.mark.parametrize(
    "text, words",
    [
        ("http://other.com/", "does not fetch from 'other.com'"),
        ("http://example.com.evil.org/", "does not fetch from"),
        ("http://notexample.com/", "does not fetch from"),
        ("http://cdn.net/", "does not fetch from"),
        ("http://evilcdn.net/", "does not fetch from"),
        ("http://example.com:22/", "does not fetch from 'example.com:22'"),
        ("http://odd.org/", "does not fetch from"),
        ("http://example.com@evil.org/", "user name or password"),
        ("http://evil.org@example.com/", "user name or password"),
        ("http://:secret@example.com/", "user name or password"),
        ("http://evil.org\\@example.com/", "no backslashes"),
        ("http://example.com\\.evil.org/", "no backslashes"),
        ("http://example.com/a b", "no blanks"),
        ("http://example.com/\n", "no blanks"),
        ("http://example.com/\x00", "not a valid http or https address"),
        ("ftp://example.com/", "not a valid http or https address"),
        ("ftp://example.com:443/", "not a valid http or https address"),
        ("http://example.com:0/", "does not fetch from 'example.com:0'"),
        ("http://example.com:99999/", "no valid host"),
        ("http://example.com:x/", "not a valid http or https address"),
        ("http:///a", "no valid host"),
        ("http://exam%70le.com/", "no valid host"),
        ("http://a..b/", "no valid host"),
        ("http://[2001:db8::1%25eth0]/", "no valid host"),
        ("http://①.com/", "not a valid http or https address"),
        ("http://2130706433/", "does not fetch from"),
        ("http://example.com/" + "a" * MAX_URL_LENGTH, f"at most {MAX_URL_LENGTH} characters"),
    ],
)
def test_other_addresses_are_refused(text: str, words: str) -> None:
    with pytest.raises(MediaError, match=words):
        RULES.parse(text)


def test_every_host() -> None:
    every, ports = UrlRules(["*"]), UrlRules(["*:9000"])
    assert not every.is_empty and UrlRules().is_empty
    assert every.parse("https://anything.at.all/").host == "anything.at.all"
    assert ports.parse("http://anything:9000/").port == 9000
    for rules, text in ((every, "http://anything:9000/"), (ports, "http://anything/"), (UrlRules(), "http://a/")):
        with pytest.raises(MediaError, match="does not fetch from"):
            rules.parse(text)


PRIVATE = [
    "127.0.0.1",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fe80::1%eth0",
    "fec0::1",
    "fd00::1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "2002:a00:1::",
    "2001:0:808:808::80ff:fffe",
    "2001:0:808:808::f7f7:f7f7",
    "2002:808:808::",
    "192.0.0.192",
    "192.88.99.1",
    "168.63.129.16",
    "100.100.100.200",
    "198.18.0.1",
    "192.0.2.1",
    "203.0.113.7",
    "240.0.0.1",
    "::ffff:168.63.129.16",
    "64:ff9b::a83f:8110",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::808:808",
    "fd00:ec2::254",
    "2001:db8::1",
    "3fff::1",
    "100::1",
    "5f00::1",
]


@pytest.mark.parametrize("ip", PRIVATE)
def test_connections_lead_to_public_addresses_only(ip: str) -> None:
    assert not RULES.may_connect(ip)


@pytest.mark.parametrize("ip", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses(ip: str) -> None:
    assert RULES.may_connect(ip)


def test_networks_that_were_allowed() -> None:
    rules = UrlRules(["*"], ["10.0.0.0/8", "fd00::/8"])
    assert [rules.may_connect(ip) for ip in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::1")] == [True] * 3
    assert [rules.may_connect(ip) for ip in ("11.1.2.3", "127.0.0.1", "fe80::1")] == [True, False, False]


@pytest.mark.parametrize("text", ["", "a/b", "http://a", "a b", "u@a", "a:x", "a?b", "a*b", "*a", "a..b", "..", ":80"])
def test_entries_that_are_no_hosts(text: str) -> None:
    with pytest.raises(ConfigError, match="--allowed-media-domains: .* is not a host"):
        UrlRules([text])


@pytest.mark.parametrize("text", ["10.0.0.1/8", "a", "", "10.0.0.0/40"])
def test_entries_that_are_no_ranges(text: str) -> None:
    with pytest.raises(ConfigError, match="--allowed-media-networks"):
        UrlRules([], [text])


@pytest.mark.parametrize(
    "location, expected",
    [
        ("/b.png", "http://example.com/b.png"),
        ("b.png", "http://example.com/a/b.png"),
        ("//evil.org/", "http://evil.org/"),
        ("https://evil.org", "https://evil.org/"),
    ],
)
def test_redirects_lead_to_addresses_that_are_read_again(location: str, expected: str) -> None:
    assert RULES.parse("http://example.com/a/c.png").redirect_target(location) in (expected, expected.rstrip("/"))


@pytest.mark.parametrize("location", ["http://a\x00b/", "\\\\evil.org"])
def test_redirects_to_nonsense(location: str) -> None:
    with pytest.raises(MediaError, match="redirects to an address that is not valid"):
        RULES.parse("http://example.com/a/c.png").redirect_target(location)
