from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sglang_plug import ConfigError

pytest.importorskip("redis", minversion="8", reason="the library redis is not installed")

from sglang_plug_redis import Settings, register_kv_stores
from sglang_plug_redis.seal import PASSWORD, SECRET, Seal, read_password, read_secret
from sglang_plug_redis.store import RedisStore


def test_it_declares_one_store_that_needs_its_library() -> None:
    (spec,) = register_kv_stores()
    assert (spec.kind, spec.name, spec.needs) == ("kv-store", "redis", ("redis>=8",))


@pytest.mark.parametrize("settings", [{"url": "localhost:6379"}, {"prefix": "a*b"}, {"prefix": ""}, {"timeout": 0.0}])
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        Settings(**settings)


def test_an_address_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, "0123456789abcdef")
    with pytest.raises(ConfigError, match="redis.url"):
        RedisStore(Settings(url="redis://localhost:port/0"))


def test_the_secret_is_read_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET, raising=False)
    with pytest.raises(ConfigError, match=f"is missing.*{SECRET}"):
        read_secret(Settings())
    monkeypatch.setenv(SECRET, "short")
    with pytest.raises(ConfigError, match="has 5 bytes"):
        read_secret(Settings())
    monkeypatch.setenv(SECRET, "of the environment")
    assert read_secret(Settings()) == b"of the environment"
    (tmp_path / "secret").write_text("of a file, which counts\n")
    assert read_secret(Settings(secret_file=str(tmp_path / "secret"))) == b"of a file, which counts"
    with pytest.raises(ConfigError, match="redis.secret_file.*cannot be read"):
        read_secret(Settings(secret_file=str(tmp_path / "nothing")))


def test_the_password_is_read_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PASSWORD, raising=False)
    assert read_password(Settings()) is None
    monkeypatch.setenv(PASSWORD, "p")
    assert read_password(Settings()) == "p"
    (tmp_path / "password").write_text("q\n")
    assert read_password(Settings(password_file=str(tmp_path / "password"))) == "q"


def test_a_seal_tells_keys_contents_and_secrets_apart() -> None:
    seal, key, data = Seal(b"0123456789abcdef"), b"k" * 32, memoryview(b"content")
    value = seal.close(key, data)
    assert seal.open(key, value) == data
    assert seal.open(b"l" * 32, value) is None
    assert Seal(b"another secret...").open(key, value) is None
    for index in range(len(value)):
        assert seal.open(key, value[:index] + bytes([value[index] ^ 1]) + value[index + 1 :]) is None
    for length in range(len(value)):
        assert seal.open(key, value[:length]) is None
