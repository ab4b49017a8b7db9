"""The secret that the engines of a server share, and the CURVE keys that are derived from it."""

from __future__ import annotations

import hmac
from dataclasses import dataclass

import zmq
from zmq.utils import z85

from sglang_plug import read_shared_secret
from sglang_plug_backends.kv_stores.settings import TransferSettings

VARIABLE = "SGLANG_PLUG_TRANSFER_SECRET"


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
    return read_shared_secret(
        "transfer.secret_file",
        settings.secret_file,
        VARIABLE,
        user="the KV store 'transfer'",
        sharers="for all engines",
        reason="whoever can send blocks to an engine could change what it computes",
    )
