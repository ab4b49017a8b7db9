"""The salt that separates an adapter's prefixes from all others: the same after a restart, if its content tells it."""

from __future__ import annotations

import secrets
from hashlib import blake2b

import torch
from torch import Tensor

from sglang_plug import Adapter, LowRankAdapter

SALT_BYTES = 32
CHUNK = 16 << 20
"""Bytes of a tensor that are copied to the host at once."""


def adapter_salt(adapter: Adapter, *, whole: bool) -> str:
    """Return a digest of the matrices of an adapter, so that KV stores find its prefixes after a restart.

    It is a random number for an adapter that is more than such matrices, and if this rank has a part of it only
    (``whole`` is False): then another adapter could have the same digest.
    """
    digest = blake2b(digest_size=SALT_BYTES)
    for name, layer in sorted(adapter.layers.items()):
        if not whole or not isinstance(layer, LowRankAdapter):
            return f"random {secrets.token_hex(SALT_BYTES)}"
        matrices = layer.low_rank
        digest.update(f"{name} {len(matrices.parts)};".encode())
        _update(digest, matrices.down)
        for part in matrices.parts:
            digest.update(f"{part.columns} {part.ranks} {part.scale!r};".encode())
            _update(digest, part.up)
    return f"digest {digest.hexdigest()}"


def _update(digest: blake2b, tensor: Tensor) -> None:
    digest.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
    content = tensor.detach().contiguous().view(-1).view(torch.uint8)
    for start in range(0, content.numel(), CHUNK):
        digest.update(content[start : start + CHUNK].cpu().numpy().data)
