"""The keys of blocks: chained digests of everything that determines their content."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from hashlib import blake2b

from sglang_plug import KVBlock, SequenceView

FORMAT = "1"
"""Version of the layout of blocks and of the computation of their keys."""
SHORT = 64
"""Maximum number of characters of a fact that is described as it is."""


def namespace_digest(identity: Mapping[str, str], weights: bytes, layout: str) -> bytes:
    """Return the digest of everything that all blocks of an engine have in common.

    Args:
        identity: see ``PrefixPool.identity``.
        weights: digest of the content of the weights.
        layout: describes the bytes of a block.
    """
    facts = {**identity, "weights": weights.hex(), "layout": layout, "format": FORMAT}
    return blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=KVBlock.KEY_BYTES).digest()


def described(identity: Mapping[str, str], weights: bytes | None, layout: str) -> dict[str, str | None]:
    """Return the facts of ``namespace_digest`` under their names, digests for those that are long.

    ``weights`` is ``None`` while their digest is not known.
    """
    facts = {**identity, "layout": layout, "format": FORMAT}
    short = {
        name: value if len(value) <= SHORT else blake2b(value.encode(), digest_size=8).hexdigest()
        for name, value in facts.items()
    }
    return {**short, "weights": None if weights is None else weights.hex()}


class BlockKeys:
    """Computes the keys of the blocks of sequences.

    Args:
        namespace: a result of ``namespace_digest``.
        block_tokens: tokens of a block.
    """

    def __init__(self, namespace: bytes, block_tokens: int) -> None:
        self._namespace, self._block_tokens = namespace, block_tokens

    def content(self, salt: str, content: bytes) -> bytes:
        """Return the key of a tensor that was computed from ``content`` for sequences with ``salt``."""
        return blake2b(content, digest_size=KVBlock.KEY_BYTES, key=self._root(salt), person=b"tensor").digest()

    def extend(self, keys: list[bytes], sequence: SequenceView, count: int) -> None:
        """Append to ``keys``, those of the first blocks of ``sequence``, until there are ``count``."""
        size = self._block_tokens
        start = len(keys)
        if start >= count:
            return
        tokens = array("q", sequence.keys(start * size, count * size))
        encoded, step = memoryview(tokens).cast("B"), size * tokens.itemsize
        parent = keys[-1] if keys else self._root(sequence.salt)
        for offset in range(0, len(encoded), step):
            parent = blake2b(encoded[offset : offset + step], digest_size=KVBlock.KEY_BYTES, key=parent).digest()
            keys.append(parent)

    def _root(self, salt: str) -> bytes:
        return blake2b(salt.encode(), digest_size=KVBlock.KEY_BYTES, key=self._namespace).digest()
