"""Components that fail on one rank of a group in threads, declared and implemented in one file."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from torch import Tensor

from sglang_plug import AttentionSpec, Checkpoint, ConfigError, ForwardBatch, Model, WeightsSpec, hookimpl
from sglang_plug_backends.torch_native.attention import TorchAttention
from sglang_plug_backends.weights.safetensors import load_safetensors

FULL = "full"
"""Name of a file in a checkpoint's folder; while it exists, rank 1 fails to load the checkpoint."""


@hookimpl
def register_attention_backends() -> Iterator[AttentionSpec]:
    yield AttentionSpec(name="broken-on-rank-1", target=f"{__name__}:BrokenOnRank1")


@hookimpl
def register_weight_loaders() -> Iterator[WeightsSpec]:
    yield WeightsSpec(name="full-on-rank-1", target=f"{__name__}:load")


def is_rank_1() -> bool:
    return threading.current_thread().name == "rank 1"


class BrokenOnRank1(TorchAttention):
    """Fails on rank 1 for batches of several tokens, but not in the engine's memory profiling."""

    def plan(self, batch: ForwardBatch) -> None:
        if is_rank_1() and len(batch.input_ids) > 1:
            raise RuntimeError("its memory is gone")
        super().plan(batch)


def load(checkpoint: Checkpoint, model: Model) -> Iterator[tuple[str, Tensor]]:
    if is_rank_1() and (checkpoint.path / FULL).exists():
        raise ConfigError("its disk is full")
    yield from load_safetensors(checkpoint, model)
