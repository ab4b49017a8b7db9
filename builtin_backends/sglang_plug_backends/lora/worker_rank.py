"""The adapters of a worker rank: its parts of those that rank 0 has loaded, by rank 0's numbers."""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Sequence as Ordered
from contextlib import AbstractContextManager

from sglang_plug import ForwardBatch, Kernels, Model, ModelPhase, RankPhase, RankStep, StepExtension

from .adapters import LOAD, Adapters
from .lora_batch import LoadedAdapter
from .lora_layers import unfused

logger = logging.getLogger(__name__)


class WorkerRankLora(StepExtension, ModelPhase, RankPhase):
    """Loads and unloads the adapters that rank 0 loads and unloads, and applies them to the same steps.

    Args:
        adapters: this rank's adapters.
    """

    def __init__(self, adapters: Adapters) -> None:
        self._adapters = adapters
        self.held: dict[int, LoadedAdapter] = {}
        """The adapters that requests may have, by number."""

    def kernels(self, kernels: Kernels) -> Kernels:
        """Return kernels whose products adapters can change."""
        return unfused(kernels)

    def install(self, model: Model, kernels: Kernels) -> None:
        """Attach the adapters to ``model``."""
        self._adapters.install(model)

    def handle_command(self, command: bytes) -> None:
        """Load or drop an adapter."""
        name, number, *path = json.loads(command)
        if name == LOAD:
            self._load(number, *path)
        else:
            self._forget(number)

    def prepare_step(self, step: RankStep, batch: ForwardBatch) -> AbstractContextManager[None]:
        """Apply the adapters of the step's sequences."""
        owners = [self.held[number] if number else None for number in _decode_owners(step.data)]
        return self._adapters.computing(owners, batch.query_lens)

    def _load(self, number: int, path: str) -> None:
        """Read this rank's part of the folder ``path``, and keep it if every rank could."""
        adapter, ranks = None, self._adapters.ranks
        try:
            adapter = self._adapters.read(path)
        except Exception as error:
            logger.error("rank %d: the adapter in %s: %s", ranks.rank, path, error)
        if ranks.all_ranks_succeeded(adapter is not None) and adapter is not None:
            self.held[number] = LoadedAdapter(str(number), path, "", adapter.layers, number=number)

    def _forget(self, number: int) -> None:
        """Drop an adapter that no request uses any more."""
        del self.held[number]
        self._adapters.forget()


def encode_owners(owners: Ordered[LoadedAdapter | None]) -> bytes:
    """Return the number of each sequence's adapter, 0 for none, for the worker ranks."""
    return array("q", [0 if owner is None else owner.number for owner in owners]).tobytes()


def _decode_owners(data: bytes) -> array[int]:
    numbers = array("q")
    numbers.frombytes(data)
    return numbers
