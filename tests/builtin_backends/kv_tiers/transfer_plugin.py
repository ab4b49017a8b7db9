"""A plugin with transfer stores that record or lose their blocks, and with extensions that wait for transfers.

Each engine that uses the plugin imports it anew, so that what is noted is of one engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sglang_plug import (
    Attention,
    ChunkView,
    ExtensionContext,
    ForwardPhase,
    Kernels,
    KVBlockPart,
    KVStoreSpec,
    Model,
    ModelPhase,
    ServicePhase,
    StepExtension,
    StepExtensionSpec,
    StepStats,
    hookimpl,
)
from sglang_plug_backends.kv_stores.transfer.store import TransferStore

SENT: list[tuple[int, str]] = []
"""The number of blocks of each call that sent whole blocks, and the transfer that it completed."""
SENT_PARTS: list[int] = []
"""The first byte of the parts of each call that sent parts of blocks."""


@hookimpl
def register_kv_stores() -> Iterator[KVStoreSpec]:
    for store in (NotingStore, PartsStore, LosingStore):
        yield KVStoreSpec(
            name=store.name,
            target=f"{__name__}:{store.__name__}",
            settings="sglang_plug_backends.kv_stores.settings:TransferSettings",
        )


@hookimpl
def register_step_extensions() -> Iterator[StepExtensionSpec]:
    yield StepExtensionSpec(name="watch-transfers", target=f"{__name__}:build")


class NotingStore(TransferStore):
    """A store that records the whole blocks that it sends."""

    name = "noting"

    def send(self, keys: Sequence[bytes], address: str, completes: str = "") -> None:
        super().send(keys, address, completes)
        SENT.append((len(keys), completes))


class PartsStore(TransferStore):
    """A store that sends parts of blocks only, and records them."""

    name = "parts"

    def send(self, keys: Sequence[bytes], address: str, completes: str = "") -> None:
        super().send((), address, completes)

    def send_parts(self, parts: Sequence[KVBlockPart], address: str) -> None:
        super().send_parts(parts, address)
        SENT_PARTS.append(parts[0].start)


class LosingStore(TransferStore):
    """A store that sends the blocks of the first chunk only, and completes no transfer."""

    name = "losing"

    def send(self, keys: Sequence[bytes], address: str, completes: str = "") -> None:
        if len(keys) == 4:
            super().send(keys, address)

    def send_parts(self, parts: Sequence[KVBlockPart], address: str) -> None: ...


class WaitingSteps(StepExtension, ServicePhase):
    """An extension that records the prompt tokens of each step; the second step waits until blocks of the first were
    sent."""

    def __init__(self) -> None:
        self._steps: list[int] = []

    def step_done(self, stats: StepStats) -> None:
        self._steps.append(stats.prefill_tokens)
        if len(self._steps) == 1:
            until(lambda: SENT)

    def info(self) -> Mapping[str, Any]:
        return {"steps": self._steps, "sent": SENT}


class WaitingLayers(StepExtension, ModelPhase, ForwardPhase, ServicePhase):
    """An extension that computes each attention layer of a prompt only after the parts of earlier layers were sent."""

    def __init__(self) -> None:
        self._sends, self._sent_before = False, 0

    def install(self, model: Model, kernels: Kernels) -> None:
        layers = [module for module in model.modules() if isinstance(module, Attention)]
        for before, layer in enumerate(layers):
            layer.register_forward_pre_hook(lambda *_, before=before: self._wait(before))

    def before_forward(self, chunks: Sequence[ChunkView]) -> None:
        transfers = [chunk.sequence.request.transfer for chunk in chunks]
        self._sends = any(transfer is not None and transfer.address for transfer in transfers)
        self._sent_before = len(SENT_PARTS)

    def info(self) -> Mapping[str, Any]:
        return {"sent_parts": SENT_PARTS}

    def _wait(self, before: int) -> None:
        if self._sends:
            until(lambda: len(SENT_PARTS) >= self._sent_before + before)


def build(context: ExtensionContext) -> StepExtension | None:
    (store,) = context.config.cache.kv_stores
    return {NotingStore.name: WaitingSteps, PartsStore.name: WaitingLayers}.get(store, lambda: None)()


def until(holds: Callable[[], object]) -> None:
    """Wait until ``holds()`` is true."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)
