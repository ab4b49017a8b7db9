"""The secret that blocks are authenticated with, and the password of the server: from files or the environment."""

from __future__ import annotations

import hmac

from sglang_plug import read_credential, read_shared_secret

from . import Settings

SECRET, PASSWORD = "SGLANG_PLUG_REDIS_SECRET", "SGLANG_PLUG_REDIS_PASSWORD"
SEAL_BYTES = 32


def read_secret(settings: Settings) -> bytes:
    """Return the secret. Raises ``ConfigError`` if there is none, or if it is short."""
    return read_shared_secret(
        "redis.secret_file",
        settings.secret_file,
        SECRET,
        user="the KV store 'redis'",
        sharers="for all servers that share the store",
        reason="whoever can write to the Redis server could change what is computed otherwise",
    )


def read_password(settings: Settings) -> str | None:
    """Return the password; ``None`` if there is none besides that in the URL. Raises ``ConfigError``."""
    return read_credential("redis.password_file", settings.password_file, PASSWORD).decode(errors="replace") or None


class Seal:
    """Authenticates blocks: HMAC-SHA256 of a key and its content.

    Args:
        secret: see ``read_secret``.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @property
    def id(self) -> str:
        """A public name of the secret: servers with other secrets use other names for their blocks."""
        return hmac.digest(self._secret, b"sglang-plug-redis", "sha256")[:8].hex()

    def close(self, key: bytes, data: memoryview) -> bytes:
        """Return what is kept on the server: the code, then the content."""
        return b"".join((self._code(key, data), data.cast("B")))

    def open(self, key: bytes, value: bytes) -> memoryview | None:
        """Return the content of what the server returned; ``None`` if nobody with the secret has stored it."""
        code, data = value[:SEAL_BYTES], memoryview(value)[SEAL_BYTES:]
        return data if hmac.compare_digest(code, self._code(key, data)) else None

    def _code(self, key: bytes, data: memoryview) -> bytes:
        code = hmac.new(self._secret, key, "sha256")  # keys have one length, so the code tells key and content apart
        code.update(data)
        return code.digest()
