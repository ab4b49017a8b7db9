"""The adapters of a follower: its parts of those that rank 0 has loaded, by the numbers that rank 0 gave them."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Ordered
from contextlib import AbstractContextManager, nullcontext

from sglang_plug.executor import Collectives
from sglang_plug.model import Model

from .adapted import LoadedAdapter
from .adapters import Adapters
from .ranks import agreed

logger = logging.getLogger(__name__)


class FollowedAdapters:
    """Loads and forgets what rank 0 loads and forgets.

    Args:
        adapters: of this rank, installed in its part of the model.
        collectives: of this rank.
    """

    def __init__(self, adapters: Adapters, collectives: Collectives) -> None:
        self._adapters, self._collectives = adapters, collectives
        self._held: dict[int, LoadedAdapter] = {}

    def load(self, number: int, path: str) -> None:
        """Read this rank's part of the folder ``path``, and keep it if every rank could."""
        found = None
        try:
            found = self._adapters.read(path)
        except Exception as error:
            logger.error("rank %d: the adapter in %s: %s", self._collectives.rank, path, error)
        if agreed(found is not None, self._collectives, self._adapters.device) and found is not None:
            self._held[number] = LoadedAdapter(str(number), path, "", found.layers, number=number)

    def forget(self, number: int) -> None:
        """No request has it any more."""
        del self._held[number]
        self._adapters.forget()

    def computing(self, owners: Ordered[int] | None, counts: Ordered[int]) -> AbstractContextManager[None]:
        """While a step is being computed whose sequences, of ``counts`` new tokens, have the adapters ``owners``."""
        if owners is None:
            return nullcontext()
        return self._adapters.at_work([self._held.get(number) for number in owners], counts)

    def install(self, model: Model) -> Model:
        """Let them work on ``model``; returns it."""
        return self._adapters.install(model)
