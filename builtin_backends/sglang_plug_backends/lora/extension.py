"""The step extension that serves adapters: it decides which rows of a step have which adapter."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Ordered
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

from torch import Tensor

from sglang_plug import (
    AdmissionPhase,
    ChunkView,
    ForwardBatch,
    GraphPhase,
    Kernels,
    MetricGauge,
    MetricsPhase,
    Model,
    ModelPhase,
    PlanningPhase,
    RankPhase,
    RankStep,
    SequenceView,
    ServicePhase,
    StepExtension,
)

from .adapter_limit import AdapterLimit
from .adapters import Adapters
from .lora_batch import AdapterUse, LoadedAdapter
from .lora_layers import unfused
from .worker_rank import encode_owners

LORA_INFO = "lora_requests_info"
LORA_INFO_TEXT = "Adapters of running and of waiting requests, as labels; the value is the time of the report"
DISABLED = "adapters are not enabled: start the server with --enable-lora or --lora-paths"


class WithoutAdapters(StepExtension, ServicePhase):
    """Refuses requests that name an adapter, because adapters are not enabled."""

    refusals: Mapping[str, str] = MappingProxyType({"adapter": DISABLED})

    def info(self) -> Mapping[str, Any]:
        """Report that there are no adapters."""
        return {"adapters": None}


class Lora(StepExtension, AdmissionPhase, PlanningPhase, ModelPhase, GraphPhase, RankPhase, ServicePhase, MetricsPhase):
    """Computes requests with the adapters that they name.

    Args:
        adapters: the adapters by name.
        paths: adapters that are loaded at start, each ``name=folder`` or a folder.
        max_per_batch: largest number of different adapters in one step.
        captures: decode steps with adapters are captured as graphs, where a kernel can apply them.
    """

    graph_label = "adapters"

    def __init__(self, adapters: Adapters, *, paths: Ordered[str], max_per_batch: int, captures: bool) -> None:
        self.adapters = adapters
        self._paths, self._captures = paths, captures
        self._max_per_batch = max_per_batch
        self._limit = AdapterLimit(max_per_batch, self._use)
        self._open: dict[str, SequenceView] = {}
        """Requests with an adapter that have not ended."""
        self._started = False

    def admit(self, sequence: SequenceView) -> None:
        """Look up the adapter, which the sequence keeps to its end. Raises ``RequestError`` if it is not loaded."""
        if sequence.request.adapter is not None:
            sequence.extras[self] = AdapterUse(self.adapters.find(sequence.request.adapter))
            self._open[sequence.request.id] = sequence

    def finished(self, sequence: SequenceView) -> None:
        """Drop a request that is over, and what is kept of its adapter if that has been unloaded meanwhile."""
        self._open.pop(sequence.request.id, None)
        if (adapter := self._adapter(sequence)) is not None and not self.adapters.is_loaded(adapter):
            self.adapters.forget()

    def cache_key(self, sequence: SequenceView) -> str:
        """Return the salt of the adapter."""
        adapter = self._adapter(sequence)
        return "" if adapter is None else adapter.salt

    def order(self, waiting: list[SequenceView], running: Ordered[SequenceView]) -> list[SequenceView]:
        """Leave out sequences whose adapter would be one too many in the step."""
        return self._limit.order(waiting, running)

    def kernels(self, kernels: Kernels) -> Kernels:
        """Return kernels whose products adapters can change."""
        return unfused(kernels)

    def inspect(self, model: Model) -> None:
        """Check the configured adapters before the weights are loaded."""
        self.adapters.check_first(model, self._paths)

    def install(self, model: Model, kernels: Kernels) -> None:
        """Attach the adapters to a model; at the start, load the configured ones."""
        self.adapters.install(model, kernels.add_low_rank if self._captures else None)
        if not self._started:
            self._started = True
            self.adapters.load_first(self._paths)

    def context(self, chunks: Ordered[ChunkView], query_lens: Ordered[int]) -> AbstractContextManager[None] | None:
        """Apply the adapters of ``chunks`` to the step."""
        owners = self._owners(chunks)
        return self.adapters.computing(owners, query_lens) if any(owners) else None

    @property
    def graph_version(self) -> int:
        """Number of times that an adapter had more ranks than the captured graphs have room for."""
        tables = self.adapters.tables
        return 0 if tables is None else tables.grown

    def graph_input(self, chunk: ChunkView) -> int | None:
        """Return the slot of the chunk's adapter in the tables; ``None`` if it has no slot there."""
        adapter = self._adapter(chunk.sequence)
        return 0 if adapter is None else adapter.slot or None

    def capturing(self, numbers: Tensor) -> AbstractContextManager[None] | None:
        """Let the captured step read the adapter of each row from the tables."""
        return None if self.adapters.tables is None else self.adapters.capturing(self.adapters.tables, numbers)

    def rank_step(self, chunks: Ordered[ChunkView], batch: ForwardBatch) -> RankStep | None:
        """Return the numbers of the chunks' adapters."""
        owners = self._owners(chunks)
        return RankStep(encode_owners(owners)) if any(owners) else None

    def controls(self) -> Mapping[str, Callable[..., Any]]:
        """Return the control calls for loading and unloading."""
        return {
            "load_adapter": lambda adapter, path: self.adapters.load(adapter, path),
            "unload_adapter": lambda adapter: self.adapters.unload(adapter),
        }

    def info(self) -> Mapping[str, Any]:
        """Report the folders of the loaded adapters by name."""
        return {"adapters": self.adapters.paths}

    def gauges(self) -> Iterable[MetricGauge]:
        """Report the adapters of running and of waiting requests, as gateways of Kubernetes read them."""
        running: set[str] = set()
        waiting: set[str] = set()
        for sequence in self._open.values():
            (running if sequence.slots else waiting).add(sequence.request.adapter or "")
        labels = (
            ("max_lora", str(self._max_per_batch)),
            ("running_lora_adapters", ",".join(sorted(running))),
            ("waiting_lora_adapters", ",".join(sorted(waiting))),
        )
        yield MetricGauge(LORA_INFO, LORA_INFO_TEXT, labels, time.time())

    def _use(self, sequence: SequenceView) -> AdapterUse | None:
        use: AdapterUse | None = sequence.extras.get(self)
        return use

    def _adapter(self, sequence: SequenceView) -> LoadedAdapter | None:
        use = self._use(sequence)
        return None if use is None else use.adapter

    def _owners(self, chunks: Ordered[ChunkView]) -> list[LoadedAdapter | None]:
        return [self._adapter(chunk.sequence) for chunk in chunks]
