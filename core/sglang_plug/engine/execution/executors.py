"""The executors of step extensions, which compute forward passes instead of the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from sglang_plug.contracts.extension.execution import (
    DeviceTokens,
    ExecutionContext,
    ExecutionPhase,
    StepExecutor,
    StepLogits,
)
from sglang_plug.contracts.extension.views import ChunkView
from sglang_plug.contracts.model.batch import ForwardBatch, KVPool
from sglang_plug.contracts.model.model import Model

from .rank_components import RankComponents

Decode = Callable[[Model, Sequence[ChunkView], DeviceTokens | None], StepLogits | None]
Hidden = Callable[[Model, ForwardBatch], Tensor | None]


@dataclass(frozen=True, slots=True)
class StepExecutors:
    """The executors for one KV pool, in the order of the extensions; construct it with ``of``."""

    by_name: Mapping[str, StepExecutor] = field(default_factory=dict)
    """The executors by the names of their extensions."""
    decodes: tuple[Decode, ...] = ()
    """The methods ``decode`` that executors override."""
    hiddens: tuple[Hidden, ...] = ()
    """The methods ``hidden`` that executors override."""

    @classmethod
    def of(cls, executors: Mapping[str, StepExecutor]) -> StepExecutors:
        """Collect the methods that ``executors`` override."""
        return cls(executors, _overriding(executors, "decode"), _overriding(executors, "hidden"))

    def decode(
        self, model: Model, chunks: Sequence[ChunkView], device_tokens: DeviceTokens | None
    ) -> StepLogits | None:
        """Return the logits of the first executor that computes this step; ``None`` if none does."""
        for decode in self.decodes:
            if (logits := decode(model, chunks, device_tokens)) is not None:
                return logits
        return None

    def hidden(self, model: Model, batch: ForwardBatch) -> Tensor | None:
        """Return the hidden states of the first executor that computes this step; ``None`` if none does."""
        for hidden in self.hiddens:
            if (states := hidden(model, batch)) is not None:
                return states
        return None


def _overriding(executors: Mapping[str, StepExecutor], name: str) -> tuple[Any, ...]:
    base = getattr(StepExecutor, name)
    return tuple(
        getattr(executor, name) for executor in executors.values() if getattr(type(executor), name) is not base
    )


def make_executor(
    phase: ExecutionPhase, components: RankComponents, kv: KVPool, max_context: int
) -> StepExecutor | None:
    """Let an extension make its executor for ``kv``, which has room for contexts of ``max_context`` tokens."""
    return phase.executor(
        ExecutionContext(
            backend=components.backend,
            attention=str(components.resolved.choices["attention"].component),
            kv=kv,
            max_context=min(max_context, components.resolved.context_length),
            collectives=components.collectives,
            graphs=components.extensions.graphs,
            static_inputs=components.extensions.static_inputs,
        )
    )


def worker_executors(components: RankComponents, kv: KVPool, max_context: int) -> StepExecutors:
    """Make the executors of a worker rank, which capture and compute what rank 0 tells them to."""
    made = {
        name: make_executor(phase, components, kv, max_context)
        for name, phase in components.extensions.execution_phases.items()
    }
    return StepExecutors.of({name: executor for name, executor in made.items() if executor is not None})
