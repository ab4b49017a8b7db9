"""The step extension of KV tiers: it stores prefixes that are computed, and loads them for requests that begin alike.

A request whose prefix is in a tier is held until the blocks are in the host's memory, with the state behind the last
one if the model has recurrent states. They are copied into the pools when the scheduler is about to admit the sequence,
which then finds them in the prefix cache. Files and networks are waited for in threads; the engine's thread only queues
copies.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import replace
from typing import Any

from torch import Tensor

from sglang_plug import (
    AdmissionPhase,
    CachePhase,
    Fetched,
    HoldPhase,
    Kernels,
    MemoryPhase,
    MemoryRequest,
    MetricTotal,
    Model,
    ModelPhase,
    Output,
    OutputPhase,
    PendingTensor,
    PrefixPool,
    ReadySequence,
    SequenceView,
    ServicePhase,
    StepExtension,
    StepStats,
    TensorStore,
)

from .block_keys import BlockKeys, described, namespace_digest
from .loading.prefix_source import MissingPrefix
from .loading.tensor_loads import encode, encoded_bytes
from .tier_engine import OpenStores, TierEngine
from .tier_state import TierState, awaits_blocks
from .weights_digest import WeightsDigest, parameter_sizes

logger = logging.getLogger(__name__)

START_SECONDS = 10.0
"""Seconds for which the start waits for the digest of the weights; after that, the tiers are used once it is known."""
CLEAR_SECONDS = 10.0
BUSY_BYTES = 32 << 20
"""Maximum number of bytes that are copied into the pool in a step for which other sequences wait."""
POLL = 0.001


class KVTiers(StepExtension, AdmissionPhase, HoldPhase, OutputPhase, ServicePhase, ModelPhase, MemoryPhase, CachePhase):
    """Keeps computed prefixes in stores.

    Args:
        open_stores: makes the tiers, once the KV pool is known.
        names: the names of the stores.
        memory: bytes of the host's memory that the stores may take, and blocks on their way to them and from them.
    """

    def __init__(self, open_stores: OpenStores, names: str, memory: int) -> None:
        self._open_stores, self._names, self._memory = open_stores, names, memory
        self._engine: TierEngine | None = None
        self._prefixes: PrefixPool | None = None
        self._sizes: Mapping[str, int] = {}
        self._digest: WeightsDigest | None = None
        self._keys: BlockKeys | None = None
        self._held: dict[str, SequenceView] = {}
        self._copied_bytes = 0

    # -- the engine ------------------------------------------------------------------------------------------------

    def inspect(self, model: Model) -> None:
        """Note the sizes of the parameters, before they are packed."""
        self._sizes = parameter_sizes(model)

    def install(self, model: Model, kernels: Kernels) -> None:
        """Compute the digest of the weights; no tier is used until it is known."""
        if self._digest is not None:
            self._digest.cancel()
        self._keys, self._digest = None, WeightsDigest(model, self._sizes)

    def memory_request(self, room: float | None) -> MemoryRequest | None:
        """Return the memory that stores and buffers take of the host's; none for the profiling run."""
        if room is None:
            return None
        return MemoryRequest(
            name=f"--kv-store {self._names} and its buffers",
            bytes=self._memory,
            advice="give the stores less memory, such as --set host.bytes=1GB, or the buffers, such as --set "
            "kv-tiers.buffer_mib=64, or lower --max-total-tokens",
            on_host=True,
        )

    def use_prefixes(self, prefixes: PrefixPool) -> None:
        """Open the stores."""
        self._prefixes = prefixes
        self._engine = self._open_stores(prefixes)

    def start(self) -> None:
        """Wait some seconds for the digest of the weights, so that the first request can be served from a tier."""
        if self._digest is not None:
            self._digest.wait(START_SECONDS)
        if self._block_keys() is None:
            logger.info("KV stores are used as soon as the digest of the weights is known")

    def forget_stored(self) -> None:
        """Empty all tiers. One that cannot be emptied is not used any more."""
        if self._engine is not None and not self._engine.stores.clear(CLEAR_SECONDS):
            logger.error("KV stores could not be emptied: they are not used until the server is restarted")
            self._engine.close()
            self._engine = None

    def close(self) -> None:
        """Store what is queued, and close the stores."""
        if self._digest is not None:
            self._digest.cancel()
        if self._engine is not None:
            self._engine.close()

    def step_done(self, stats: StepStats) -> None:
        """Note how long the step took."""
        self._copied_bytes = 0
        if self._engine is not None:
            self._engine.step_done(stats)

    def info(self) -> Mapping[str, Any]:
        """Report contents, hits and times of the tiers."""
        if self._engine is None or self._prefixes is None:
            return {"kv_stores": None}
        weights = None if self._digest is None else self._digest.value
        identity = described(self._prefixes.identity(), weights, self._engine.layout.describe())
        return {"kv_stores": {**self._engine.info(), "ready": self._keys is not None, "identity": identity}}

    def totals(self) -> Iterable[MetricTotal]:
        """Report what the tiers did, as metrics."""
        return () if self._engine is None else self._engine.totals()

    # -- loading ---------------------------------------------------------------------------------------------------

    def hold(self, sequence: SequenceView) -> bool:
        """Begin to load the prefix of a request, as far as a tier has it, or gets it, and the pool does not."""
        engine, keys = self._engine, self._block_keys()
        if engine is None or keys is None or self._prefixes is None or not engine.loads.usable:
            return False
        count = sequence.reusable // engine.layout.tokens
        if count == 0 or self._prefixes.cached(sequence) // engine.layout.tokens >= count:
            return False
        state = TierState()
        sequence.extras[self] = state
        keys.extend(state.keys, sequence, count)
        if awaits_blocks(sequence) and engine.transfers is not None:
            state.deadline = engine.transfers.deadline()
        elif not self._submit(sequence, state):
            return False
        self._held[sequence.request.id] = sequence
        return True

    def _submit(self, sequence: SequenceView, state: TierState, *, always: bool = False) -> bool:
        """Begin to load what the pools do not have; return False if that is of no use."""
        engine, prefixes = self._engine, self._prefixes
        assert engine is not None and prefixes is not None
        first, usable = (
            length // engine.layout.tokens for length in (prefixes.present(sequence), prefixes.cached(sequence))
        )
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

    def ready(self) -> Ordered[ReadySequence]:
        """Return the requests whose blocks are in the host's memory, or are not waited for any longer."""
        engine = self._engine
        ready = [sequence for sequence in self._held.values() if engine is None or self._is_ready(sequence)]
        for sequence in ready:
            del self._held[sequence.request.id]
        return [ReadySequence(sequence) for sequence in ready]

    def _is_ready(self, sequence: SequenceView) -> bool:
        assert self._engine is not None
        state: TierState = sequence.extras[self]
        if state.deadline and not self._begin_received(sequence, state):
            return False
        load = state.load
        if load is None or load.done:
            return True
        if self._engine.loads.is_late(load) or not self._engine.loads.usable:
            self._release(state)
            return True
        return False

    def _begin_received(self, sequence: SequenceView, state: TierState) -> bool:
        """Begin to load what another engine has sent, once it has sent all or is late; return False before that."""
        engine, transfer = self._engine, sequence.request.transfer
        assert engine is not None and engine.transfers is not None and transfer is not None
        assert self._prefixes is not None
        if not engine.transfers.is_over(transfer.id, state.deadline):
            return False
        state.deadline = 0.0
        if self._prefixes.cached(sequence) // engine.layout.tokens < len(state.keys):
            self._submit(sequence, state, always=True)
        return True

    def finished(self, sequence: SequenceView) -> None:
        """Drop what was loaded for a request that is over."""
        self._held.pop(sequence.request.id, None)
        if (state := sequence.extras.get(self)) is not None:
            self._release(state)

    def _release(self, state: TierState) -> None:
        if state.load is not None and self._engine is not None:
            self._engine.loads.release(state.load)
        state.load = None

    def restore_prefix(self, sequence: SequenceView, busy: bool) -> bool:
        """Copy the blocks of a sequence into the pool, a part of them at a time while others wait."""
        state: TierState | None = sequence.extras.get(self)
        if state is None or state.load is None or self._engine is None:
            return True
        if not state.load.done:
            return self._wait(state, busy)
        assert self._prefixes is not None
        layout, result, first = self._engine.layout, state.load.result, state.load.missing.first
        present, end = self._prefixes.present(sequence), result.end * layout.tokens
        if self._prefixes.cached(sequence) >= end:
            self._release(state)
            return True
        if present < first * layout.tokens:
            return self._load_again(sequence, state)
        if present < end:
            room = (BUSY_BYTES - self._copied_bytes) // layout.token_bytes if busy and layout.token_bytes else end
            if room < layout.tokens and self._copied_bytes:
                return False
            target = min(end, present + max(layout.tokens, room) // layout.tokens * layout.tokens)
            reached = self._prefixes.insert(sequence, target, lambda start, slots: self._copy_in(state, start, slots))
            if target <= reached < end:
                return False
            present = reached
        if result.state and present >= end:
            if busy and self._copied_bytes and self._copied_bytes + self._engine.states.size > BUSY_BYTES:
                return False
            self._restore_states(sequence, state, end)
        self._release(state)
        return True

    def _copy_in(self, state: TierState, start: int, slots: array[int]) -> None:
        assert self._engine is not None and self._prefixes is not None and state.load is not None
        layout, load = self._engine.layout, state.load
        layout.copy_in(self._prefixes.kv, slots, load.result.rows, start - load.missing.first * layout.tokens)
        self._copied_bytes += len(slots) * layout.token_bytes
        if not load.result.state:
            self._count_loaded(state, start, start + len(slots))

    def _restore_states(self, sequence: SequenceView, state: TierState, end: int) -> None:
        """Copy the states after ``end`` tokens, whose keys and values are in the pool, into their pools."""
        assert self._engine is not None and self._prefixes is not None and state.load is not None
        cached = self._prefixes.cached(sequence)
        if self._engine.states.restore(sequence, end, state.load.result.state):
            self._copied_bytes += self._engine.states.size
            self._count_loaded(state, cached, end)

    def _count_loaded(self, state: TierState, start: int, end: int) -> None:
        """Count the tokens from ``start`` to ``end``, which need not be computed, for the tiers that they came from."""
        assert self._engine is not None and state.load is not None
        size, result, first = self._engine.layout.tokens, state.load.result, state.load.missing.first
        for block in range(start // size, -(-end // size)):
            number = block - first
            tier = result.tiers[number] if 0 <= number < len(result.tiers) else result.state_tier
            count = min(end, (block + 1) * size) - max(start, block * size)
            state.loaded[tier] = state.loaded.get(tier, 0) + count

    def _load_again(self, sequence: SequenceView, state: TierState) -> bool:
        """Load blocks that were evicted from the pool since the request arrived; only once, as others need it too."""
        self._release(state)
        if state.loaded_again:
            return True
        state.loaded_again = True
        return not self._submit(sequence, state)

    def _wait(self, state: TierState, busy: bool) -> bool:
        """Return False while a second load may still be of use."""
        assert state.load is not None and self._engine is not None
        if self._engine.loads.is_late(state.load) or not self._engine.loads.usable:
            self._release(state)
            return True
        if not busy:
            time.sleep(POLL)  # nothing else could be computed
        return False

    def output(self, sequence: SequenceView, output: Output) -> Output:
        """Report the tokens that were loaded, with the first output; complete a transfer with the last one."""
        if output.finish is not None and sequence.request.transfer is not None:
            output = replace(output, sends_prompt=self._complete(sequence))
        state: TierState | None = sequence.extras.get(self)
        if state is None or state.reported or not state.loaded:
            return output
        state.reported = True
        return replace(output, loaded_tokens=tuple(state.loaded.items()))

    # -- storing ---------------------------------------------------------------------------------------------------

    def prefix_cached(self, sequence: SequenceView, length: int) -> None:
        """Queue copies of the blocks that some tier does not have."""
        engine, keys = self._engine, self._block_keys()
        if engine is None or keys is None or self._prefixes is None:
            return
        state = self._state_of(sequence)
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

    def _complete(self, sequence: SequenceView) -> bool:
        """End the transfer of a prompt to another engine; return True if blocks of it are sent."""
        transfer, engine = sequence.request.transfer, self._engine
        if transfer is None or not transfer.address or engine is None:
            return False
        self.prefix_cached(sequence, sequence.computed)  # nothing was cached if only a part of a page was computed
        state: TierState | None = sequence.extras.get(self)
        return state is not None and state.stored > 0 and engine.complete(transfer)

    def _store_blocks(self, sequence: SequenceView, keys: Ordered[bytes], first: int) -> None:
        """Queue copies of the blocks with ``keys``, from block ``first`` of the sequence on."""
        assert self._engine is not None and self._prefixes is not None
        stores, layout = self._engine.stores, self._engine.layout
        numbers, slots = stores.blocks_to_store(keys, layout.bytes), array("q")
        if not numbers:
            return
        for number in numbers:
            slots += sequence.slots[(first + number) * layout.tokens : (first + number + 1) * layout.tokens]
        copies = layout.copy_out(self._prefixes.kv, slots)
        stores.put([keys[number] for number in numbers], copies, layout.blocks, layout.bytes)

    def _store_states(self, sequence: SequenceView, key: bytes, length: int) -> None:
        """Queue a copy of the states after ``length`` tokens, if they are saved."""
        assert self._engine is not None
        stores, states = self._engine.stores, self._engine.states
        if stores.blocks_to_store([key], states.size) and (copies := states.copy_out(sequence, length)) is not None:
            stores.put([key], copies, lambda tensors: [states.encode(tensors)], states.size)

    # -- tensors of other extensions -------------------------------------------------------------------------------

    def tensor_store(self) -> TensorStore:
        """Return the tiers, as a store of tensors of other extensions."""
        return self

    def put_tensor(self, sequence: SequenceView, content: bytes, tensor: Tensor) -> None:
        """Queue a copy of ``tensor``, if some tier does not have it."""
        engine, keys = self._engine, self._block_keys()
        if engine is None or keys is None:
            return
        key, size = keys.content(sequence.salt, content), encoded_bytes(tensor)
        if engine.stores.blocks_to_store([key], size):
            engine.stores.put([key], Fetched.of(tensor), encode, size)

    def load_tensor(self, sequence: SequenceView, content: bytes, tokens: int) -> PendingTensor | None:
        """Begin to load a tensor, if a tier may have it."""
        engine, keys = self._engine, self._block_keys()
        if engine is None or keys is None:
            return None
        return engine.tensors.submit(keys.content(sequence.salt, content), tokens)

    def _state_of(self, sequence: SequenceView) -> TierState:
        state: TierState = sequence.extras.setdefault(self, TierState())
        return state

    def _block_keys(self) -> BlockKeys | None:
        """Return what computes keys with the current weights; ``None`` while their digest is not known."""
        if self._keys is None and self._digest is not None and self._digest.value is not None:
            if self._prefixes is not None and self._engine is not None:
                layout = self._engine.layout
                namespace = namespace_digest(self._prefixes.identity(), self._digest.value, layout.describe())
                self._keys = BlockKeys(namespace, layout.tokens)
        return self._keys
