"""The contract of KV stores: tiers below the prefix cache that keep blocks of keys and values.

A block holds the keys and values of a run of tokens in all layers, the recurrent states after a run of tokens, or the
embeddings of an image: blocks have different sizes. Its key is a digest of everything that determines
its content: the tokens before it, its own, the weights, the layout, the tenant. So a block never changes, a store need
not understand it, and a block that is lost is computed again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


class KVStoreError(Exception):
    """A store could not do what it was asked for; the blocks count as missing, and the server goes on without them."""


@dataclass(frozen=True, slots=True)
class KVBlock:
    """The keys and values of a run of tokens, or what else the server computed and keeps by its content."""

    KEY_BYTES: ClassVar[int] = 32
    """Length of a key."""

    key: bytes
    """``KVBlock.KEY_BYTES`` bytes that identify the content."""
    data: memoryview
    """The content, contiguous bytes. Nobody changes it, so a store may keep it instead of a copy."""


@dataclass(frozen=True, slots=True)
class KVBlockPart:
    """A part of a block of which other parts may not be computed yet: keys and values of one layer."""

    key: bytes
    """The key of the block."""
    start: int
    """Index of the part's first byte in the block."""
    size: int
    """Bytes of the whole block."""
    data: memoryview
    """The content of the part, contiguous bytes. Nobody changes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVStoreStats:
    """The contents of a store."""

    blocks: int
    bytes: int
    """Bytes that count against the budget, with the store's own overhead."""
    capacity: int | None = None
    """The budget in bytes; ``None``: the store does not limit itself."""


class KVStore(ABC):
    """Keeps blocks by key, and may drop any of them at any time. Several threads call it at once, never the step loop.

    Errors cost only hits: a method that cannot do its work raises ``KVStoreError``, or any other exception.
    """

    index_in_memory: bool = False
    """True if ``lookup`` takes microseconds and waits for nothing; it is then also called in the step loop."""
    verifies: bool = False
    """True if ``load`` itself detects every block that is not what was stored under its key. If not, the server
    appends a digest to each block and checks it."""

    memory_bytes: int = 0
    """Maximum memory of the host, in bytes, that the content takes; the server does not start if it is not free."""

    @abstractmethod
    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        """Report for each key whether the store probably has its block; counts as a use of it."""

    @abstractmethod
    def load(self, keys: Sequence[bytes], deadline: float) -> list[memoryview | KVStoreError]:
        """Return for each key its block, or the error why there is none.

        A block is exactly what was stored, or an error: never a part of it, nor another one.

        Args:
            keys: in the order of the prefix; if one is missing, those after it are of no use to the caller.
            deadline: ``time.monotonic()`` from which on blocks are of no use; the rest may be errors then.
        """

    @abstractmethod
    def store(self, blocks: Sequence[KVBlock]) -> None:
        """Keep ``blocks``, within the budget; a block that the store has already is left as it is."""

    @abstractmethod
    def delete(self, keys: Sequence[bytes]) -> None:
        """Drop the blocks with these keys; unknown ones are ignored."""

    @abstractmethod
    def clear(self) -> None:
        """Drop all blocks, those of other servers that share the store included: none is returned afterwards."""

    @abstractmethod
    def stats(self) -> KVStoreStats:
        """Return the current contents; takes microseconds."""

    def close(self) -> None:  # noqa: B027 - most stores hold nothing
        """Release what the store holds; called once, and nothing else afterwards."""


class KVTransferStore(KVStore):
    """A store that also sends its blocks to the store of another engine, which has the same name.

    An engine that computes a prompt for another one sends each block as soon as it is stored; the other engine waits
    until the transfer is complete, and then loads the blocks like any others. ``lookup`` must be immediate. A store may
    also send the parts of a block while the rest of it is computed.
    """

    index_in_memory = True

    @property
    @abstractmethod
    def address(self) -> str:
        """The address at which this store receives blocks, as text that ``send`` of another store understands."""

    @abstractmethod
    def send(self, keys: Sequence[bytes], address: str, completes: str = "") -> None:
        """Send the blocks with ``keys`` to the store at ``address``, except those that it has.

        Blocks that this store does not have are skipped. Called by one thread, in the order of the prefix. Raises
        ``KVStoreError`` if the other store cannot be reached or is too slow.

        Args:
            keys: blocks that were stored before.
            address: the ``address`` of the other store.
            completes: id of the transfer of which these are the last blocks; empty: others follow.
        """

    def send_parts(self, parts: Sequence[KVBlockPart], address: str) -> None:
        """Send parts of blocks to the store at ``address``, which has a block once it has all parts of it.

        Called by the thread that calls ``send``, for one layer after the other; each call has a part of every block
        that a step completes. ``send`` is called for the same blocks later, and sends those that the other store still
        lacks: so parts may be dropped. Raises ``KVStoreError`` as ``send`` does. By default nothing is sent.
        """

    @abstractmethod
    def received(self, transfer: str) -> bool:
        """Report whether the transfer with this id is complete; waits for nothing, and is called by the step loop.

        All blocks that were sent before its end have arrived then, but may have been dropped again. True only once for
        each transfer.
        """
