"""Loading prefixes from the tiers into the pool of an engine, and storing those of the pool in the tiers."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from sglang_plug import AsyncHostCopy, KVTransfer, PendingTensor, PrefixPool, SequenceView, StepStats

from .block_keys import BlockKeys, described, namespace_digest
from .loading.prefix_loads import PrefixLoad
from .loading.prefix_source import MissingPrefix
from .loading.tensor_loads import encode, encoded_bytes
from .tier_engine import TierEngine

POLL = 0.001


@dataclass(slots=True)
class LoadedTokens:
    """The tokens of one block that came from a tier."""

    tier: str
    start: int
    end: int


@dataclass(slots=True)
class TierState:
    """The state of one sequence in this extension."""

    keys: list[bytes] = field(default_factory=list)
    """Keys of its first blocks."""
    stored: int = 0
    """Number of its first blocks that were stored, or need not be."""
    load: PrefixLoad | None = None
    loaded_again: bool = False
    """True once blocks were loaded a second time, because earlier ones were evicted from the pool meanwhile."""
    loaded: dict[int, LoadedTokens] = field(default_factory=dict)
    """By the number of the block, since blocks may be loaded again after they were evicted."""
    reported: bool = False
    deadline: float = 0.0
    """Time until which the sequence waits for blocks of another engine; 0: for none."""

    def loaded_tokens(self, cached: int) -> tuple[tuple[str, int], ...]:
        """Return how many of the first ``cached`` tokens, which were not computed, came from each tier."""
        counts: dict[str, int] = {}
        for part in self.loaded.values():
            if part.start < cached:
                counts[part.tier] = counts.get(part.tier, 0) + min(part.end, cached) - part.start
        return tuple(counts.items())


def awaits_blocks(sequence: SequenceView) -> bool:
    """Report whether another engine sends the blocks of the prompt."""
    transfer = sequence.request.transfer
    return transfer is not None and not transfer.address


class TieredPrefixes:
    """The tiers and the pool whose prefixes they keep.

    Args:
        engine: the tiers.
        pool: the prefix cache and the KV pool.
        weights: returns the digest of the weights that are served; ``None`` while it is not known.
    """

    def __init__(self, engine: TierEngine, pool: PrefixPool, weights: Callable[[], bytes | None]) -> None:
        self.engine = engine
        self._pool, self._weights = pool, weights
        self._keys: tuple[bytes, BlockKeys] | None = None
        self._copied_bytes = 0

    def keys(self) -> BlockKeys | None:
        """Return what computes keys with the current weights; ``None`` while their digest is not known."""
        weights = self._weights()
        if weights is None:
            return None
        if self._keys is None or self._keys[0] != weights:
            layout = self.engine.layout
            namespace = namespace_digest(self._pool.identity(), weights, layout.describe())
            self._keys = weights, BlockKeys(namespace, layout.tokens)
        return self._keys[1]

    def step_done(self, stats: StepStats) -> None:
        """Note how long the step took."""
        self._copied_bytes = 0
        self.engine.step_done(stats)

    def info(self) -> dict[str, Any]:
        """Report contents, hits and times of the tiers."""
        weights = self._weights()
        identity = described(self._pool.identity(), weights, self.engine.layout.describe())
        return {**self.engine.info(), "ready": weights is not None, "identity": identity}

    # -- loading ---------------------------------------------------------------------------------------------------

    def begin(self, sequence: SequenceView, state: TierState) -> bool:
        """Begin to load the prefix of a request, as far as a tier has it, or gets it, and the pool does not.

        Returns False if that is of no use.
        """
        engine, keys = self.engine, self.keys()
        if keys is None or not engine.loads.usable:
            return False
        count = sequence.reusable // engine.layout.tokens
        if count == 0 or self._pool.cached(sequence) // engine.layout.tokens >= count:
            return False
        keys.extend(state.keys, sequence, count)
        if awaits_blocks(sequence) and engine.transfers is not None:
            state.deadline = engine.transfers.deadline()
            return True
        return self._submit(sequence, state)

    def is_ready(self, sequence: SequenceView, state: TierState) -> bool:
        """Report whether the blocks of a request are in the host's memory, or are not waited for any longer.

        If its load lacks memory, it goes on while the request is queued, in the order of the policy.
        """
        if state.deadline and not self._begin_received(sequence, state):
            return False
        load = state.load
        return load is None or load.done or self.engine.loads.lacks_memory(load) or self._given_up(state, load)

    def _submit(self, sequence: SequenceView, state: TierState, *, always: bool = False) -> bool:
        """Begin to load what the pools do not have; return False if that is of no use."""
        engine, pool = self.engine, self._pool
        first, usable = (length // engine.layout.tokens for length in (pool.cached_kv(sequence), pool.cached(sequence)))
        blocks = state.keys[first:] if engine.layout.bytes else []
        if not engine.states.size:
            missing = MissingPrefix(blocks, first)
        else:
            ends = range(usable + 1, len(state.keys) + 1)
            missing = MissingPrefix(
                blocks, first, [(end, engine.states.key(state.keys[end - 1])) for end in ends], usable
            )
        state.load = engine.loads.submit(missing, always=always)
        return state.load is not None

    def _begin_received(self, sequence: SequenceView, state: TierState) -> bool:
        """Begin to load what another engine has sent, once it has sent all or is late; return False before that."""
        engine, transfer = self.engine, sequence.request.transfer
        assert engine.transfers is not None and transfer is not None
        if not engine.transfers.is_over(transfer.id, state.deadline):
            return False
        state.deadline = 0.0
        if self._pool.cached(sequence) // engine.layout.tokens < len(state.keys):
            self._submit(sequence, state, always=True)
        return True

    def release(self, state: TierState) -> None:
        """Drop what was loaded for a request."""
        if state.load is not None:
            self.engine.loads.release(state.load)
        state.load = None

    def restore(self, sequence: SequenceView, state: TierState, busy: bool) -> bool:
        """Copy the blocks of a sequence into the pool, a part of them at a time while others wait."""
        if (load := state.load) is None:
            return True
        if not load.done:
            return self._wait(state, load, busy)
        engine, result, first = self.engine, load.result, load.missing.first
        layout = engine.layout
        cached_kv, end = self._pool.cached_kv(sequence), result.end * layout.tokens
        if self._pool.cached(sequence) >= end:
            self.release(state)
            return True
        if cached_kv < first * layout.tokens:
            return self._load_again(sequence, state)
        if cached_kv < end:
            room = (
                (engine.step_bytes - self._copied_bytes) // layout.token_bytes if busy and layout.token_bytes else end
            )
            if room < layout.tokens and self._copied_bytes:
                return False
            target = min(end, cached_kv + max(layout.tokens, room) // layout.tokens * layout.tokens)
            reached = self._pool.insert(sequence, target, lambda start, slots: self._copy_in(state, load, start, slots))
            if target <= reached < end:
                return False
            cached_kv = reached
        if result.state and cached_kv >= end:
            if busy and self._copied_bytes and self._copied_bytes + engine.states.size > engine.step_bytes:
                return False
            self._restore_states(sequence, state, load, end)
        self.release(state)
        return True

    def _copy_in(self, state: TierState, load: PrefixLoad, start: int, slots: array[int]) -> None:
        layout = self.engine.layout
        layout.copy_in(self._pool.kv, slots, load.result.rows, start - load.missing.first * layout.tokens)
        self._copied_bytes += len(slots) * layout.token_bytes
        if not load.result.state:
            self._note_loaded(state, load, start, start + len(slots))

    def _restore_states(self, sequence: SequenceView, state: TierState, load: PrefixLoad, end: int) -> None:
        """Copy the states after ``end`` tokens, whose keys and values are in the pool, into their pools."""
        cached = self._pool.cached(sequence)
        if self.engine.states.restore(sequence, end, load.result.state):
            self._copied_bytes += self.engine.states.size
            self._note_loaded(state, load, cached, end)

    def _note_loaded(self, state: TierState, load: PrefixLoad, start: int, end: int) -> None:
        """Note the tokens from ``start`` to ``end``, which need not be computed, and the tiers that they came from."""
        size, result, first = self.engine.layout.tokens, load.result, load.missing.first
        for block in range(start // size, -(-end // size)):
            number = block - first
            tier = result.tiers[number] if 0 <= number < len(result.tiers) else result.state_tier
            part = LoadedTokens(tier, max(start, block * size), min(end, (block + 1) * size))
            if (known := state.loaded.get(block)) is not None:
                part.start, part.end = min(part.start, known.start), max(part.end, known.end)
            state.loaded[block] = part

    def _load_again(self, sequence: SequenceView, state: TierState) -> bool:
        """Load blocks that were evicted from the pool since the request arrived; only once, as others need it too."""
        self.release(state)
        if state.loaded_again:
            return True
        state.loaded_again = True
        return not self._submit(sequence, state)

    def _given_up(self, state: TierState, load: PrefixLoad) -> bool:
        """Release a load that is late or of no use any more; return False while it is waited for."""
        if self.engine.loads.usable and not self.engine.loads.is_late(load):
            return False
        self.release(state)
        return True

    def _wait(self, state: TierState, load: PrefixLoad, busy: bool) -> bool:
        """Return False while a load may still be of use, for a sequence that could be computed now."""
        if self.engine.loads.lacks_memory(load):
            self.release(state)
            return True
        if self._given_up(state, load):
            return True
        if not busy:
            time.sleep(POLL)  # nothing else could be computed
        return False

    # -- storing ---------------------------------------------------------------------------------------------------

    def store(self, sequence: SequenceView, state: TierState, length: int) -> None:
        """Queue copies of the blocks of a cached prefix that some tier does not have."""
        engine, keys = self.engine, self.keys()
        if keys is None:
            return
        count, size = length // engine.layout.tokens, engine.layout.tokens
        if count <= state.stored:
            return
        keys.extend(state.keys, sequence, count)
        first, state.stored = state.stored, count
        new = state.keys[first:count]
        if engine.layout.bytes:
            self._store_blocks(sequence, new, first)
        if engine.states.size and length == count * size:
            new.append(engine.states.key(state.keys[count - 1]))
            self._store_states(sequence, new[-1], length)
        if (transfer := sequence.request.transfer) is not None and transfer.address:
            engine.send(new, transfer)

    def complete(self, sequence: SequenceView, state: TierState, transfer: KVTransfer) -> bool:
        """End the transfer of a prompt to another engine; return True if blocks of it are sent."""
        self.store(sequence, state, sequence.computed)  # nothing was cached if only a part of a page was computed
        return state.stored > 0 and self.engine.complete(transfer)

    def _store_blocks(self, sequence: SequenceView, keys: Ordered[bytes], first: int) -> None:
        """Queue copies of the blocks with ``keys``, from block ``first`` of the sequence on."""
        stores, layout = self.engine.stores, self.engine.layout
        numbers, slots = stores.blocks_to_store(keys, layout.bytes), array("q")
        if not numbers:
            return
        for number in numbers:
            slots += sequence.slots[(first + number) * layout.tokens : (first + number + 1) * layout.tokens]
        copies = layout.copy_out(self._pool.kv, slots)
        stores.put([keys[number] for number in numbers], copies, layout.blocks, layout.bytes)

    def _store_states(self, sequence: SequenceView, key: bytes, length: int) -> None:
        """Queue a copy of the states after ``length`` tokens, if they are saved."""
        stores, states = self.engine.stores, self.engine.states
        if stores.blocks_to_store([key], states.size) and (copies := states.copy_out(sequence, length)) is not None:
            stores.put([key], copies, lambda tensors: [states.encode(tensors)], states.size)

    def put_tensor(self, sequence: SequenceView, content: bytes, tensor: Tensor) -> None:
        """Queue a copy of ``tensor``, if some tier does not have it."""
        stores, keys = self.engine.stores, self.keys()
        if keys is None:
            return
        key, size = keys.content(sequence.salt, content), encoded_bytes(tensor)
        if stores.blocks_to_store([key], size):
            stores.put([key], AsyncHostCopy.of(tensor), encode, size)

    def load_tensor(self, sequence: SequenceView, content: bytes, tokens: int) -> PendingTensor | None:
        """Begin to load a tensor, if a tier may have it."""
        keys = self.keys()
        return None if keys is None else self.engine.tensors.submit(keys.content(sequence.salt, content), tokens)
