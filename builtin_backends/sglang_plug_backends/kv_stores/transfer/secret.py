"""The secret that the engines of a server share, and the CURVE keys that are derived from it."""

from __future__ import annotations

import hmac
import os
from dataclasses import dataclass
from pathlib import Path

import zmq
from zmq.utils import z85

from sglang_plug import ConfigError
from sglang_plug_backends.kv_stores.settings import TransferSettings

VARIABLE = "SGLANG_PLUG_TRANSFER_SECRET"
LEAST_BYTES = 16


@dataclass(frozen=True, slots=True, repr=False)
class CurveKeys:
    """A pair of keys, which every engine with the secret has: they encrypt, and prove that both sides know it."""

    public: bytes
    secret: bytes

    @classmethod
    def of(cls, secret: bytes) -> CurveKeys:
        """Return the keys that belong to a secret."""
        private = z85.encode(hmac.digest(secret, b"sglang-plug transfer", "sha256"))
        return cls(zmq.curve_public(private), private)


def read_secret(settings: TransferSettings) -> bytes:
    """Return the secret. Raises ``ConfigError`` if there is none, or if it is short."""
    try:
        secret = Path(settings.secret_file).read_bytes().strip() if settings.secret_file else _variable()
    except OSError as error:
        raise ConfigError(f"transfer.secret_file: {settings.secret_file} cannot be read: {error}") from error
    if len(secret) < LEAST_BYTES:
        problem = f"has {len(secret)} bytes" if secret else "is missing"
        raise ConfigError(
            f"the KV store 'transfer' needs a secret of at least {LEAST_BYTES} bytes, which {problem}: whoever can "
            f"send blocks to an engine could change what it computes. Set {VARIABLE}, or --set "
            "transfer.secret_file=FILE, to the same secret for all engines"
        )
    return secret


def _variable() -> bytes:
    return os.environ.get(VARIABLE, "").encode()
