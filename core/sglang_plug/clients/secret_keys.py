"""The CURVE keys of the connections between decode servers and prefill servers."""

from __future__ import annotations

import hmac

import zmq
from zmq.utils import z85


def keys_of(secret: bytes) -> tuple[bytes, bytes]:
    """Return the public and the secret key that belong to a secret; servers of both roles use the same ones."""
    private = z85.encode(hmac.digest(secret, b"sglang-plug prefill", "sha256"))
    return zmq.curve_public(private), private
