"""The step extension of KV tiers: it stores prefixes that are computed, and loads them for requests that begin alike.

A request whose prefix is in a tier is held until the blocks are in the host's memory. They are copied into the KV pool
when the scheduler is about to admit the sequence, which then finds them in the prefix cache. Files and networks are
waited for in threads; the engine's thread only queues copies.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field, replace
from typing import Any

from sglang_plug import (
    AdmissionPhase,
    CachePhase,
    HoldPhase,
    Kernels,
    MetricTotal,
    Model,
    ModelPhase,
    Output,
    OutputPhase,
    PrefixPool,
    ReadySequence,
    SequenceView,
    ServicePhase,
    StepExtension,
    StepStats,
)

from .block_keys import BlockKeys, namespace_digest
from .prefix_loads import PrefixLoad
from .tier_engine import OpenStores, TierEngine
from .weights_digest import WeightsDigest

logger = logging.getLogger(__name__)

START_SECONDS = 10.0
"""Seconds for which the start waits for the digest of the weights; after that, the tiers are used once it is known."""
CLEAR_SECONDS = 10.0
BUSY_BYTES = 32 << 20
"""Most bytes that are copied into the pool in a step for which other sequences wait."""
POLL = 0.001


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
    loaded: dict[str, int] = field(default_factory=dict)
    """Tokens that came from each tier."""
    reported: bool = False
    deadline: float = 0.0
    """Time until which the sequence waits for blocks of another engine; 0: for none."""


class KVTiers(StepExtension, AdmissionPhase, HoldPhase, OutputPhase, ServicePhase, ModelPhase, CachePhase):
    """Keeps computed prefixes in stores.

    Args:
        open_stores: makes the tiers, once the KV pool is known.
    """

    def __init__(self, open_stores: OpenStores) -> None:
        self._open_stores = open_stores
        self._engine: TierEngine | None = None
        self._prefixes: PrefixPool | None = None
        self._digest: WeightsDigest | None = None
        self._keys: BlockKeys | None = None
        self._held: dict[str, SequenceView] = {}
        self._copied_bytes = 0

    # -- the engine ------------------------------------------------------------------------------------------------

    def install(self, model: Model, kernels: Kernels) -> None:
        """Compute the digest of the weights; no tier is used until it is known."""
        if self._digest is not None:
            self._digest.cancel()
        self._keys, self._digest = None, WeightsDigest(model)

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
            self._engine.prefill.observe(stats)

    def info(self) -> Mapping[str, Any]:
        """Report contents, hits and times of the tiers."""
        if self._engine is None:
            return {"kv_stores": None}
        return {"kv_stores": {**self._engine.info(), "ready": self._keys is not None}}

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
        if count == 0:
            return False
        first = self._prefixes.cached(sequence) // engine.layout.tokens
        if first >= count:
            return False
        state = TierState()
        sequence.extras[self] = state
        keys.extend(state.keys, sequence, count)
        if _awaits_blocks(sequence) and engine.transfers is not None:
            state.deadline = engine.transfers.deadline()
        elif not self._submit(state, first):
            return False
        self._held[sequence.request.id] = sequence
        return True

    def _submit(self, state: TierState, first: int, *, always: bool = False) -> bool:
        """Begin to load the blocks from ``first`` on; return False if that is of no use."""
        assert self._engine is not None
        state.load = self._engine.loads.submit(state.keys[first:], first, always=always)
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
        first = self._prefixes.cached(sequence) // engine.layout.tokens
        if first < len(state.keys):
            self._submit(state, first, always=True)
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
        tokens, token_bytes = self._engine.layout.tokens, self._engine.layout.token_bytes
        load, cached = state.load, self._prefixes.cached(sequence)
        end = (load.first + len(load.tiers)) * tokens
        if cached < load.first * tokens:
            return self._load_again(state, cached // tokens)
        room = (BUSY_BYTES - self._copied_bytes) // token_bytes if busy else end
        if cached < end and room < tokens and self._copied_bytes:
            return False
        target = min(end, cached + max(tokens, room) // tokens * tokens)
        if cached < target:
            reached = self._prefixes.insert(sequence, target, lambda start, slots: self._copy_in(state, start, slots))
            if target <= reached < end:
                return False
        self._release(state)
        return True

    def _copy_in(self, state: TierState, start: int, slots: array[int]) -> None:
        assert self._engine is not None and self._prefixes is not None and state.load is not None
        layout, load = self._engine.layout, state.load
        offset = load.first * layout.tokens
        layout.copy_in(self._prefixes.kv, slots, load.rows, start - offset)
        self._copied_bytes += len(slots) * layout.token_bytes
        for token in range(start, start + len(slots)):
            tier = load.tiers[(token - offset) // layout.tokens]
            state.loaded[tier] = state.loaded.get(tier, 0) + 1

    def _load_again(self, state: TierState, first: int) -> bool:
        """Load blocks that were evicted from the pool since the request arrived; only once, as others need it too."""
        self._release(state)
        if state.loaded_again:
            return True
        state.loaded_again = True
        return not self._submit(state, first)

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
        state: TierState = sequence.extras.setdefault(self, TierState())
        count, size = length // engine.layout.tokens, engine.layout.tokens
        if count <= state.stored:
            return
        keys.extend(state.keys, sequence, count)
        first, state.stored = state.stored, count
        new = state.keys[first:count]
        if wanted := engine.stores.wanted(new):
            slots = array("q")
            for number in wanted:
                slots += sequence.slots[(first + number) * size : (first + number + 1) * size]
            engine.stores.put([new[number] for number in wanted], engine.layout.copy_out(self._prefixes.kv, slots))
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

    def _block_keys(self) -> BlockKeys | None:
        """Return what computes keys with the current weights; ``None`` while their digest is not known."""
        if self._keys is None and self._digest is not None and self._digest.value is not None:
            if self._prefixes is not None and self._engine is not None:
                layout = self._engine.layout
                namespace = namespace_digest(self._prefixes.identity(), self._digest.value, layout.describe())
                self._keys = BlockKeys(namespace, layout.tokens)
        return self._keys


def _awaits_blocks(sequence: SequenceView) -> bool:
    """Report whether another engine sends the blocks of the prompt."""
    transfer = sequence.request.transfer
    return transfer is not None and not transfer.address
