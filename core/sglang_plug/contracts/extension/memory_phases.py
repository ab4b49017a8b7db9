"""Phases of step extensions that concern memory: what sequences own, the sizes of pools, and profiling at the start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from sglang_plug.contracts.model.recurrent_state import StateShape
    from sglang_plug.contracts.request import Request

    from .views import PrefixPool, SequenceView, TensorStore


class StatePhase:
    """Memory of a fixed size that a sequence owns while it runs, in addition to its KV slots. Override what is needed.

    A sequence continues from a cached prefix only where its state is known too. It is then given its state, and loses
    it when it stops running: when it ends, fails, is aborted, paused or retracted.
    """

    def reusable(self, sequence: SequenceView, length: int) -> int:
        """Return how many of the first ``length`` tokens, whose keys and values are cached, may be reused."""
        return length

    def acquire(self, sequence: SequenceView, start: int, cached: int) -> bool:
        """Give the sequence its state after ``start`` tokens, a result of ``reusable``; False if there is no room.

        ``cached``: number of tokens whose keys and values are cached, though perhaps not the state after them; below 0
        if there is no prefix cache.
        """
        return True

    def chunk_end(self, sequence: SequenceView, start: int, end: int) -> int:
        """Return where a chunk of tokens from ``start`` must end: after ``start``, and at ``end`` at the latest.

        Applies before the prompt's layout, which may lengthen a chunk.
        """
        return end

    def planned(self, sequence: SequenceView, end: int) -> None:
        """A chunk that ends before index ``end`` is planned."""

    def committed(self, sequence: SequenceView) -> None:
        """A chunk is computed; ``sequence.computed`` is its end."""

    def release(self, sequence: SequenceView, keep: bool) -> int | None:
        """Take the state back; the prefix cache may ``keep`` it. Called once after each successful ``acquire``.

        Returns the number of tokens whose keys and values are computed, where that is more than
        ``sequence.computed``, because the state includes a step that is still on the device. ``None``: no change.
        """
        return None


class StoredStatePhase:
    """Copies of states outside of the device, for an extension with ``StatePhase``. Override all three methods."""

    def stored_tensors(self, multiple: int) -> Sequence[StateShape]:
        """Return the tensors of a state that can be copied to the host and back; none if prefixes need no state.

        Called before the first request if prefixes are stored outside of the KV pool, which is possible at multiples of
        ``multiple`` tokens, whole pages: states should be saved there. Every dtype is given.
        """
        return ()

    def copy_state(self, sequence: SequenceView, length: int) -> Sequence[Tensor]:
        """Queue copies of the saved state after the first ``length`` tokens, and return them, on the device.

        Nothing changes them later. Empty if no such state is saved.
        """
        return ()

    def restore_state(self, sequence: SequenceView, length: int, tensors: Sequence[Tensor]) -> bool:
        """Save the state after the first ``length`` tokens of a waiting sequence, from host copies of ``copy_state``.

        The tensors may be pinned, and nothing changes them later. False: there is no room.
        """
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequest:
    """Memory that an extension takes in addition to the KV pool."""

    name: str
    """The purpose of the memory, as messages and the report of memory use name it, such as ``recurrent states``."""
    bytes: int
    advice: str
    """Advice to the user if the memory does not suffice, as the continuation of a sentence."""
    count: int = 0
    """Number of units, which only the extension interprets."""
    on_host: bool = False
    """True if it is memory of the host, whatever the device is. It is refused if so much is not free."""


class MemoryPhase:
    """A pool of an extension, not the KV pool, on the device of rank 0 or its host. Override what is needed."""

    def memory_request(self, room: float | None) -> MemoryRequest | None:
        """Return what the extension takes of ``room`` bytes, which the KV pool needs too; ``None``: nothing.

        ``room`` is ``None`` for the profiling run, whose sequences own no states: return the minimum that works.
        Raises ``ConfigError`` if ``room`` does not suffice.
        """
        return None

    def allocate(self, request: MemoryRequest | None) -> None:
        """Allocate what was requested, instead of what was allocated before; ``None``: only free that."""

    def max_running(self) -> int | None:
        """Return the maximum number of running sequences; ``None``: no limit. Called after ``allocate``."""
        return None


class CachePhase:
    """The prefix cache and the KV pool. Override the methods that are needed; the others do nothing."""

    def use_prefixes(self, prefixes: PrefixPool) -> None:
        """Receive access to the prefix cache and its KV pool; called once, before ``ServicePhase.start``."""

    def prefix_cached(self, sequence: SequenceView, length: int) -> None:
        """The first ``length`` tokens of a running sequence are in the prefix cache, whole pages.

        Called when a chunk of a prompt is computed and when the sequence stops running. The first ``length`` entries of
        ``sequence.slots`` hold their keys and values during the call; work on the device that is queued now reads them.
        """

    def prefix_restored(self, sequence: SequenceView, slots: Sequence[int]) -> None:
        """The first ``len(slots)`` tokens of a waiting sequence are in the prefix cache, whole pages, in these slots.

        Called after ``PrefixPool.insert`` has inserted some of them. ``sequence.slots`` is still empty.
        """

    def evicted(self, slots: Sequence[int]) -> None:
        """The prefix cache has evicted the tokens in ``slots``, to make room; not called when it is emptied: ``reset``.

        Each slot held one token of one cached prefix, so an extension that has noted slots knows which prefixes are
        gone. The slots may belong to another sequence after the call.
        """

    def restore_prefix(self, sequence: SequenceView, busy: bool) -> bool:
        """Insert what is known of the prefix of a waiting sequence with ``PrefixPool.insert``, before it is admitted.

        Called whenever the scheduler considers the sequence. False: it is considered again in the next step.

        Args:
            busy: the step computes other sequences, too, which wait for this call.
        """
        return True

    def reset(self) -> None:
        """The prefix cache was emptied; nothing is running."""

    def forget_stored(self) -> None:
        """No prefix that was computed so far, wherever it is stored, may be used any more; called after ``reset``.

        Called for ``/flush_cache`` and weight updates, and not after the server's own first request.
        """

    def check(self) -> None:
        """Raise ``AssertionError`` if something was lost or is owned twice.

        Called between two steps, while sequences may run.
        """


class TensorStorePhase:
    """A store for tensors of extensions, and its use. An extension overrides one of the methods."""

    def tensor_store(self) -> TensorStore | None:
        """Return a store for tensors of other extensions; called once.

        ``CachePhase.use_prefixes`` of all extensions is called before. Only one extension may have a store.
        """
        return None

    def use_tensor_store(self, store: TensorStore) -> None:
        """Receive the store of another extension, if there is one; called once, before ``ServicePhase.start``."""


class ProfilingPhase:
    """The measurement of memory at the start. Override the methods that are needed; the others do nothing."""

    def largest_request(self, tokens: int) -> Request | None:
        """Return a request with a prompt of at most ``tokens`` tokens that takes the most memory of this extension.

        It is admitted like any other, with its prompt lengthened to the largest chunk of a step, and computed once
        before the size of the KV pool is chosen. ``None``: steps take no more memory than without the extension.
        """
        return None
