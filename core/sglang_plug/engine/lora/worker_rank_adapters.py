"""The adapters of a worker rank: its parts of those that rank 0 has loaded, by rank 0's numbers."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Ordered
from contextlib import AbstractContextManager, nullcontext

from sglang_plug.contracts.model.model import Model
from sglang_plug.contracts.serving.executor import Collectives
from sglang_plug.engine.tensor_parallel.rank_messages import agreed

from .adapters import Adapters
from .lora_batch import LoadedAdapter

logger = logging.getLogger(__name__)


class WorkerRankAdapters:
    """Loads and unloads the adapters that rank 0 loads and unloads.

    Args:
        adapters: this rank's adapters, installed in its part of the model.
        collectives: this rank's collectives.
    """

    def __init__(self, adapters: Adapters, collectives: Collectives) -> None:
        self._adapters, self._collectives = adapters, collectives
        self._held: dict[int, LoadedAdapter] = {}

    def load(self, number: int, path: str) -> None:
        """Read this rank's part of the folder ``path``, and keep it if every rank could."""
        adapter = None
        try:
            adapter = self._adapters.read(path)
        except Exception as error:
            logger.error("rank %d: the adapter in %s: %s", self._collectives.rank, path, error)
        if agreed(adapter is not None, self._collectives, self._adapters.device) and adapter is not None:
            self._held[number] = LoadedAdapter(str(number), path, "", adapter.layers, number=number)

    def forget(self, number: int) -> None:
        """Drop an adapter that no request uses any more."""
        del self._held[number]
        self._adapters.forget()

    def computing(self, owners: Ordered[int] | None, counts: Ordered[int]) -> AbstractContextManager[None]:
        """Apply the adapters ``owners`` of sequences with ``counts`` new tokens to the step computed in the context."""
        if owners is None:
            return nullcontext()
        return self._adapters.at_work([self._held.get(number) for number in owners], counts)

    def install(self, model: Model) -> Model:
        """Attach the adapters to ``model``; return it."""
        return self._adapters.install(model)
