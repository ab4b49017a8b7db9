"""Tests of fetching images from a server in this process: limits, redirects, and the addresses of connections."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import MediaError
from sglang_plug_api.multimodal.fetching import ByteBudget, Fetcher, Resolve, resolve_host
from sglang_plug_api.multimodal.url_rules import UrlRules

LOOPBACK = "127.0.0.0/8"
BODY = b"what the file holds"
LONG = 300.0


def answer(body: bytes = BODY, status: str = "200 OK", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    if "transfer_encoding" not in headers and "content_length" not in headers:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join((*lines, "connection: close", "", "")).encode() + body


class Site:
    """A server that answers from a table, otherwise with 404, and records the heads of requests."""

    def __init__(self, answers: dict[str, bytes]) -> None:
        self.answers, self.requests = answers, list[str]()
        self.port = 0

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            self.requests.append(head)
            path = head.split(" ")[1]
            writer.write(self.answers.get(path, answer(b"", "404 Not Found")))
            await writer.drain()
            if path == "/silent":
                await reader.read()
        writer.close()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site({"/a.png": answer()})
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0)
    site.port = server.sockets[0].getsockname()[1]
    async with server:
        yield site


def fetcher(
    site: Site,
    *,
    domains: tuple[str, ...] = (),
    networks: tuple[str, ...] = (LOOPBACK,),
    resolve: Resolve = resolve_host,
) -> Fetcher:
    return Fetcher(UrlRules(domains or (f"127.0.0.1:{site.port}",), networks), LONG, resolve)


def at(*ips: str) -> Resolve:
    """Return a resolver for which every host has these addresses."""
    return lambda host, port: list(ips)


def allowance(each: int = 1000, total: int = 10_000) -> ByteBudget:
    return ByteBudget(each, total)


async def refused(work: Any) -> str:
    with pytest.raises(MediaError) as caught:
        await work
    return str(caught.value)


async def test_a_file(site: Site) -> None:
    assert await fetcher(site).fetch(site.url("/a.png"), allowance()) == BODY
    head = site.requests[-1].lower()
    assert f"host: 127.0.0.1:{site.port}\r\n" in head and "accept-encoding: identity" in head
    assert "cookie" not in head and "authorization" not in head


async def test_host_names_are_resolved_once(site: Site) -> None:
    """DNS rebinding: a host name is resolved once, and the connection uses that address."""
    answers = iter(["127.0.0.1", "127.0.0.99"])
    pictures = fetcher(site, domains=(f"pictures.test:{site.port}",), resolve=lambda host, port: [next(answers)])
    body = await pictures.fetch(site.url("/a.png", "Pictures.test"), allowance())
    assert body == BODY and next(answers) == "127.0.0.99"
    assert f"host: pictures.test:{site.port}\r\n" in site.requests[-1].lower()


async def test_connections_to_private_addresses_are_refused(site: Site) -> None:
    text = await refused(fetcher(site, networks=()).fetch(site.url("/a.png"), allowance()))
    assert text.startswith("'127.0.0.1' is not at a public address") and "--allowed-media-networks" in text
    every = fetcher(site, domains=(f"*:{site.port}",), resolve=at("10.0.0.1", "127.0.0.1", "169.254.169.254"))
    assert await every.fetch(site.url("/a.png", "mixed.test"), allowance()) == BODY
    assert len(site.requests) == 1


async def test_the_next_number_is_tried(site: Site) -> None:
    any_host = (f"*:{site.port}",)
    two = fetcher(site, domains=any_host, resolve=at("127.0.0.77", "127.0.0.1"))
    assert await two.fetch(site.url("/a.png", "two.test"), allowance()) == BODY
    one = fetcher(site, domains=any_host, resolve=at("127.0.0.77"))
    text = await refused(one.fetch(site.url("/a.png", "one.test"), allowance()))
    assert text.startswith("it cannot be fetched from 'one.test': ")


async def test_hosts_that_are_not_there(site: Site) -> None:
    def fail(host: str, port: int) -> Any:
        raise socket.gaierror("no such host")

    text = await refused(fetcher(site, domains=("gone.test",), resolve=fail).fetch("http://gone.test/", allowance()))
    assert text == "there is no host 'gone.test'"


async def test_redirects(site: Site) -> None:
    site.answers |= {
        "/1": answer(b"", "302 Found", location="/2"),
        "/2": answer(b"", "307 Temporary Redirect", location=site.url("/3")),
        "/3": answer(b"", "301 Moved", location="a.png"),
        "/0": answer(b"", "302 Found", location="/1"),
        "/away": answer(b"", "302 Found", location="http://evil.test/"),
        "/number": answer(b"", "302 Found", location=f"http://127.0.0.2:{site.port}/a.png"),
        "/file": answer(b"", "302 Found", location="file:///etc/passwd"),
        "/odd": answer(b"", "302 Found", location="\\\\evil.test/"),
        "/nowhere": answer(b"", "302 Found"),
    }
    image_fetcher = fetcher(site)
    assert await image_fetcher.fetch(site.url("/1"), allowance()) == BODY
    assert "redirects more than 3 times" in await refused(image_fetcher.fetch(site.url("/0"), allowance()))
    assert "does not fetch from 'evil.test'" in await refused(image_fetcher.fetch(site.url("/away"), allowance()))
    assert "does not fetch from '127.0.0.2:" in await refused(image_fetcher.fetch(site.url("/number"), allowance()))
    assert "not a valid http or https" in await refused(image_fetcher.fetch(site.url("/file"), allowance()))
    assert "redirects to an address that is not" in await refused(image_fetcher.fetch(site.url("/odd"), allowance()))
    assert "answers with status 302" in await refused(image_fetcher.fetch(site.url("/nowhere"), allowance()))


async def test_statuses_and_broken_answers(site: Site) -> None:
    site.answers |= {
        "/gzip": answer(gzip.compress(b"a" * 10_000), content_encoding="gzip"),
        "/short": answer(b"abc", content_length="10"),
        "/noise": b"\x00\x01 this is no HTTP\r\n\r\n",
        "/partial": answer(BODY, "206 Partial Content"),
    }
    image_fetcher = fetcher(site)
    assert await refused(image_fetcher.fetch(site.url("/none"), allowance())) == "127.0.0.1 answers with status 404"
    assert await refused(image_fetcher.fetch(site.url("/partial"), allowance())) == "127.0.0.1 answers with status 206"
    assert "compressed once more" in await refused(image_fetcher.fetch(site.url("/gzip"), allowance()))
    for path in ("/short", "/noise"):
        assert "cannot be fetched from '127.0.0.1'" in await refused(image_fetcher.fetch(site.url(path), allowance()))


async def test_bytes_are_counted_while_they_come(site: Site) -> None:
    chunked = b"".join(b"5\r\nabcde\r\n" for _ in range(30)) + b"0\r\n\r\n"
    site.answers |= {
        "/long": answer(b"a" * 101),
        "/promised": answer(b"", content_length="101"),
        "/chunked": answer(chunked, transfer_encoding="chunked"),
        "/hundred": answer(b"a" * 100),
    }
    image_fetcher = fetcher(site)
    for path in ("/long", "/promised", "/chunked"):
        assert "more than 100 bytes" in await refused(image_fetcher.fetch(site.url(path), allowance(100)))
    shared = allowance(100, 250)
    for _ in range(2):
        assert len(await image_fetcher.fetch(site.url("/hundred"), shared)) == 100
    assert "more than 250 bytes together" in await refused(image_fetcher.fetch(site.url("/hundred"), shared))


async def test_one_that_never_ends_is_given_up(site: Site) -> None:
    site.answers["/silent"] = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc"
    hasty = Fetcher(UrlRules([f"127.0.0.1:{site.port}"], [LOOPBACK]), 0.3)
    text = await refused(hasty.fetch(site.url("/silent"), allowance()))
    assert "took longer than 0.3 seconds" in text or "cannot be fetched" in text


async def test_proxies_of_the_environment_are_not_used(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert await fetcher(site).fetch(site.url("/a.png"), allowance()) == BODY


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File with a self-signed certificate of ``pictures.test`` and its private key."""
    folder = tmp_path_factory.mktemp("certificate")
    key, chain, both = (folder / name for name in ("key.pem", "chain.pem", "both.pem"))
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=pictures.test"
    command += f" -addext subjectAltName=DNS:pictures.test -keyout {key} -out {chain}"
    try:
        subprocess.run(command.split(), check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("there is no openssl command")
    both.write_bytes(key.read_bytes() + chain.read_bytes())
    return both


async def test_certificates_are_held_against_the_name(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, trust = Site({"/a.png": answer()}), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trust.load_cert_chain(certificate)
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0, ssl=trust)
    port = server.sockets[0].getsockname()[1]
    rules = UrlRules([f"*:{port}"], [LOOPBACK])
    async with server:
        trusting, strange = Fetcher(rules, LONG, at("127.0.0.1")), Fetcher(rules, LONG, at("127.0.0.1"))
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert await trusting.fetch(f"https://pictures.test:{port}/a.png", allowance()) == BODY
        text = await refused(trusting.fetch(f"https://other.test:{port}/a.png", allowance()))
        assert "cannot be fetched from 'other.test'" in text and "ertificate" in text
        monkeypatch.delenv("SSL_CERT_FILE")
        text = await refused(strange.fetch(f"https://pictures.test:{port}/a.png", allowance()))
        assert "cannot be fetched from 'pictures.test'" in text and "ertificate" in text
