"""A KV store over the Redis protocol. Declares only: this module is imported at every start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sglang_plug import KVStoreSpec, hookimpl

api_version = 1

SCHEMES = ("redis://", "rediss://", "unix://")
SIGNS, LONGEST_PREFIX = "_.:-", 100


@hookimpl
def register_kv_stores() -> Iterator[KVStoreSpec]:
    yield KVStoreSpec(
        name="redis",
        target=f"{__name__}.store:RedisStore",
        settings=f"{__name__}:Settings",
        example=f"{__name__}.example:example",
        needs=("redis>=8",),
        summary="a Redis or Valkey server that several servers share",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings given as ``--set redis.KEY=VALUE``."""

    url: str = "redis://127.0.0.1:6379/0"
    """Address of the server: ``redis://HOST:PORT/DATABASE``, ``rediss://`` with TLS, or ``unix://PATH``."""
    secret_file: str = ""
    """File with the secret that blocks are authenticated with, the same for all servers that share blocks; without it
    the variable ``SGLANG_PLUG_REDIS_SECRET`` of the environment holds the secret."""
    password_file: str = ""
    """File with the password of the Redis server; without it the variable ``SGLANG_PLUG_REDIS_PASSWORD``, or the one
    in the URL, which other users of the machine can see."""
    prefix: str = "sglang-plug"
    """The names of all blocks begin with it: letters, digits and ``_.:-``."""
    expire_seconds: int = 0
    """Seconds after its last use when a block is removed; 0: when the server needs the memory."""
    timeout: float = 2.0
    """Seconds to wait for a connection, or for an answer that no deadline limits further."""

    def __post_init__(self) -> None:
        if not self.url.startswith(SCHEMES):
            raise ValueError(f"url must begin with {', '.join(SCHEMES)}, such as redis://127.0.0.1:6379/0")
        letters = self.prefix.translate(dict.fromkeys(map(ord, SIGNS), "x"))
        if not (letters.isascii() and letters.isalnum() and len(letters) <= LONGEST_PREFIX):
            raise ValueError(f"prefix must be at most 100 letters, digits and '_.:-', not {self.prefix!r}")
        if self.expire_seconds < 0:
            raise ValueError(f"expire_seconds must be at least 0, not {self.expire_seconds}")
        if not self.timeout > 0:
            raise ValueError(f"timeout must be above 0, not {self.timeout}")
