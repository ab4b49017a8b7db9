"""The step extension of KV tiers: it stores prefixes that are computed, and loads them for requests that begin alike.

A request whose prefix is in a tier is held until the blocks are in the host's memory, with the state after the last
one if the model has recurrent states. They are copied into the pools when the scheduler is about to admit the sequence,
which then finds them in the prefix cache. Files and networks are waited for in threads; the engine's thread only queues
copies.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import replace
from typing import Any

from torch import Tensor

from sglang_plug import (
    AdmissionPhase,
    CachePhase,
    HoldPhase,
    Kernels,
    MemoryPhase,
    MemoryRequest,
    MetricCounter,
    MetricsPhase,
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
    TensorStorePhase,
)

from .tier_engine import OpenStores
from .tiered_prefixes import TieredPrefixes, TierState
from .weights_digest import WeightsDigest, parameter_sizes

logger = logging.getLogger(__name__)

START_SECONDS = 10.0
"""Seconds for which the start waits for the digest of the weights; after that, the tiers are used once it is known."""
CLEAR_SECONDS = 10.0


class KVTiers(
    StepExtension,
    AdmissionPhase,
    HoldPhase,
    OutputPhase,
    ServicePhase,
    MetricsPhase,
    ModelPhase,
    MemoryPhase,
    CachePhase,
    TensorStorePhase,
):
    """Keeps computed prefixes in stores.

    Args:
        open_stores: makes the tiers, once the KV pool is known.
        names: the names of the stores.
        memory: bytes of the host's memory that the stores may take, and blocks on their way to them and from them.
    """

    def __init__(self, open_stores: OpenStores, names: str, memory: int) -> None:
        self._open_stores, self._names, self._memory = open_stores, names, memory
        self._sizes: Mapping[str, int] = {}
        self._digest: WeightsDigest | None = None
        self._tiers: TieredPrefixes | None = None
        self._held: dict[str, SequenceView] = {}

    # -- the engine ------------------------------------------------------------------------------------------------

    def inspect(self, model: Model) -> None:
        """Note the sizes of the parameters, before they are packed."""
        self._sizes = parameter_sizes(model)

    def install(self, model: Model, kernels: Kernels) -> None:
        """Compute the digest of the weights; no tier is used until it is known."""
        if self._digest is not None:
            self._digest.close()
        self._digest = WeightsDigest(model, self._sizes)

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
        self._tiers = TieredPrefixes(self._open_stores(prefixes), prefixes, self._weights)

    def start(self) -> None:
        """Wait some seconds for the digest of the weights, so that the first request can be served from a tier."""
        if self._digest is not None:
            self._digest.wait(START_SECONDS)
        if self._weights() is None:
            logger.info("KV stores are used as soon as the digest of the weights is known")

    def forget_stored(self) -> None:
        """Empty all tiers. One that cannot be emptied is not used any more."""
        if self._tiers is not None and not self._tiers.engine.stores.clear(CLEAR_SECONDS):
            logger.error("KV stores could not be emptied: they are not used until the server is restarted")
            self._tiers.engine.close()
            self._tiers = None

    def close(self) -> None:
        """Stop computing the digest, store what is queued, and close the stores."""
        if self._digest is not None:
            self._digest.close()
        if self._tiers is not None:
            self._tiers.engine.close()

    def step_done(self, stats: StepStats) -> None:
        """Note how long the step took."""
        if self._tiers is not None:
            self._tiers.step_done(stats)

    def info(self) -> Mapping[str, Any]:
        """Report contents, hits and times of the tiers."""
        return {"kv_stores": None if self._tiers is None else self._tiers.info()}

    def counters(self) -> Iterable[MetricCounter]:
        """Report what the tiers did, as metrics."""
        return () if self._tiers is None else self._tiers.engine.counters()

    # -- loading ---------------------------------------------------------------------------------------------------

    def hold(self, sequence: SequenceView) -> bool:
        """Begin to load the prefix of a request, as far as a tier has it, or gets it, and the pool does not."""
        if self._tiers is None or not self._tiers.begin(sequence, self._state_of(sequence)):
            return False
        self._held[sequence.request.id] = sequence
        return True

    def ready(self) -> Ordered[ReadySequence]:
        """Return the requests whose blocks are in the host's memory, or are not waited for any longer."""
        tiers = self._tiers
        ready = [
            sequence
            for sequence in self._held.values()
            if tiers is None or tiers.is_ready(sequence, self._state_of(sequence))
        ]
        for sequence in ready:
            del self._held[sequence.request.id]
        return [ReadySequence(sequence) for sequence in ready]

    def finished(self, sequence: SequenceView) -> None:
        """Drop what was loaded for a request that is over."""
        self._held.pop(sequence.request.id, None)
        if self._tiers is not None and (state := sequence.extras.get(self)) is not None:
            self._tiers.release(state)

    def restore_prefix(self, sequence: SequenceView, busy: bool) -> bool:
        """Copy the blocks of a sequence into the pool, a part of them at a time while others wait."""
        state: TierState | None = sequence.extras.get(self)
        return state is None or self._tiers is None or self._tiers.restore(sequence, state, busy)

    def output(self, sequence: SequenceView, output: Output) -> Output:
        """Report the tokens that were loaded, with the first output; complete a transfer with the last one."""
        if output.finish is not None and (transfer := sequence.request.transfer) is not None:
            tiers = self._tiers if transfer.address else None
            sends = tiers is not None and tiers.complete(sequence, self._state_of(sequence), transfer)
            output = replace(output, sends_prompt=sends)
        state: TierState | None = sequence.extras.get(self)
        if state is None or state.reported or not state.loaded:
            return output
        state.reported = True
        return replace(output, loaded_tokens=state.loaded_tokens(output.cached_tokens))

    # -- storing ---------------------------------------------------------------------------------------------------

    def prefix_cached(self, sequence: SequenceView, length: int) -> None:
        """Queue copies of the blocks that some tier does not have."""
        if self._tiers is not None:
            self._tiers.store(sequence, self._state_of(sequence), length)

    # -- tensors of other extensions -------------------------------------------------------------------------------

    def tensor_store(self) -> TensorStore:
        """Return the tiers, as a store of tensors of other extensions."""
        return self

    def put_tensor(self, sequence: SequenceView, content: bytes, tensor: Tensor) -> None:
        """Queue a copy of ``tensor``, if some tier does not have it."""
        if self._tiers is not None:
            self._tiers.put_tensor(sequence, content, tensor)

    def load_tensor(self, sequence: SequenceView, content: bytes, tokens: int) -> PendingTensor | None:
        """Begin to load a tensor, if a tier may have it."""
        return None if self._tiers is None else self._tiers.load_tensor(sequence, content, tokens)

    def _state_of(self, sequence: SequenceView) -> TierState:
        state: TierState | None = sequence.extras.get(self)
        if state is None:
            state = sequence.extras[self] = TierState()
        return state

    def _weights(self) -> bytes | None:
        """Return the digest of the current weights; ``None`` while it is not known."""
        return None if self._digest is None else self._digest.value
