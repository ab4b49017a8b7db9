"""Tests of authentication: the routes that each kind of API key may call."""

from __future__ import annotations

import asyncio
import hmac

import pytest
from fastapi import Request

from sglang_plug.plugins.spec import Auth
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.http.auth import guard
from sglang_plug_api.options.config import ServerConfig


def allowed(level: Auth, authorization: bytes | None, *user: str, admin: str | None = None) -> bool:
    headers = [] if authorization is None else [(b"authorization", authorization)]
    try:
        request = Request({"type": "http", "headers": headers})
        asyncio.run(guard(level, ServerConfig(api_keys=user, admin_api_key=admin))(request))
    except ApiError as error:
        assert (error.status, error.code) == (401, "invalid_api_key")
        return False
    return True


@pytest.mark.parametrize(
    ("level", "user", "admin", "opened_by"),
    [
        ("public", ["u"], "a", {None, "u", "v", "a", "x"}),
        ("user", [], None, {None, "u", "v", "a", "x"}),
        ("user", ["u"], None, {"u"}),
        ("user", ["u", "v"], "a", {"u", "v", "a"}),
        ("user", [], "a", {None, "u", "v", "a", "x"}),
        ("admin", [], None, {None, "u", "v", "a", "x"}),
        ("admin", ["u", "v"], None, {"u", "v"}),
        ("admin", ["u"], "a", {"a"}),
        ("admin", [], "a", {"a"}),
    ],
)
def test_levels(level: Auth, user: list[str], admin: str | None, opened_by: set[str | None]) -> None:
    for key in (None, "u", "v", "a", "x"):
        header = None if key is None else f"Bearer {key}".encode()
        assert allowed(level, header, *user, admin=admin) == (key in opened_by), key


@pytest.mark.parametrize("header", [b"Bearer key", b"bearer key", b"BEARER  key "])
def test_the_scheme_has_no_case(header: bytes) -> None:
    assert allowed("user", header, "key")


@pytest.mark.parametrize(
    "header", [b"", b"key", b"Basic key", b"Bearer", b"Bearer keys", b"Bearer ke", b"Bearer key,key", b"Bearer \xff"]
)
def test_what_is_refused(header: bytes) -> None:
    assert not allowed("user", header, "key")


def test_keys_beyond_ascii_are_compared_as_the_bytes_sent() -> None:
    assert allowed("user", "Bearer clé–日".encode(), "clé–日")
    assert not allowed("user", "Bearer clé–月".encode(), "clé–日")
    assert not allowed("user", b"Bearer \xff\xfe", "clé–日")


def opened_by(*headers: tuple[bytes, bytes], user: str = "key") -> bool:
    request = Request({"type": "http", "headers": list(headers)})
    try:
        asyncio.run(guard("user", ServerConfig(api_keys=(user,)))(request))
    except ApiError:
        return False
    return True


@pytest.mark.parametrize("value", [b"key", b" key "])
def test_the_key_may_come_as_a_header_of_its_own(value: bytes) -> None:
    assert opened_by((b"x-api-key", value))


@pytest.mark.parametrize("value", [b"", b"ke", b"keys", b"Bearer key", b"\xff"])
def test_what_that_header_does_not_open(value: bytes) -> None:
    assert not opened_by((b"x-api-key", value))


def test_one_valid_key_is_enough() -> None:
    wrong, right = (b"authorization", b"Bearer no"), (b"x-api-key", b"key")
    assert opened_by(wrong, right)
    assert opened_by((b"x-api-key", b"no"), right)
    assert opened_by((b"authorization", b"Bearer key"), (b"x-api-key", b"no"))
    assert opened_by((b"x-api-key", "clé".encode()), user="clé")


def test_every_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def spy(first: bytes, second: bytes) -> bool:
        compared.append(second)
        return first == second

    monkeypatch.setattr(hmac, "compare_digest", spy)
    assert allowed("user", b"Bearer u", "u", "v", admin="a")
    assert compared == [b"u", b"v", b"a"]
