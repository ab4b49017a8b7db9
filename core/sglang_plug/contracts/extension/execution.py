"""The phase of step extensions that compute forward passes instead of the engine, for instance by replaying graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from sglang_plug.contracts.model.attention import AttentionBackend
    from sglang_plug.contracts.model.batch import ForwardBatch, KVPool
    from sglang_plug.contracts.model.model import Model
    from sglang_plug.contracts.serving.executor import Collectives

    from .step_phases import GraphPhase, StaticInputPhase
    from .views import ChunkView


@dataclass(frozen=True, slots=True)
class DeviceTokens:
    """Input tokens of a step that only the device knows: each is the last one of a chunk."""

    chunk_indices: list[int]
    """Indices of the chunks, in ascending order."""
    tokens: Tensor
    """``[len(chunk_indices)]`` int64 on the device."""


class StepLogits(Protocol):
    """The results of a decode step that an executor computed; its tensors may be overwritten by the next step."""

    def part(self, chunks: Sequence[int]) -> StepLogits:
        """Return the results of the chunks with these indices only."""

    def logits(self) -> Tensor:
        """Return ``[chunks, vocabulary]``, the logits of each chunk."""

    def tokens(self) -> Tensor:
        """Return ``[chunks]`` int64 in a tensor of its own: the most likely tokens, -1 where logits are not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionContext:
    """The parts of an engine with which an executor computes steps."""

    backend: AttentionBackend
    attention: str
    """Describes the component of the attention backend, for messages."""
    kv: KVPool
    """The KV pool; its slot 0 belongs to padding."""
    max_context: int
    """Tokens of the longest context: the model's, or what the pool has room for."""
    collectives: Collectives
    """The collectives that the model was built with."""
    graphs: tuple[GraphPhase, ...] = ()
    """The step extensions that take part in graphs of decode steps."""
    static_inputs: tuple[StaticInputPhase, ...] = ()
    """The step extensions with an input of every captured decode step."""


class StepExecutor:
    """Computes forward passes with one KV pool, instead of the engine. Override what is needed.

    The methods are called in inference mode, and ``decode`` and ``hidden`` for each step: before the engine computes a
    step operation by operation, it asks each executor in turn, until one returns a result.
    """

    sizes: Sequence[int] = ()
    """The sizes of the steps that are captured, ascending: numbers of sequences or of tokens."""

    def capture(self, model: Model, *, must_fit: bool = False) -> None:
        """Capture all sizes. Called once, before the first step, on rank 0.

        A model that cannot be captured is served without; the log says why. With ``must_fit``, an error that says that
        memory does not suffice is raised.
        """

    def capture_sizes(self, model: Model, sizes: Sequence[int]) -> None:
        """Capture ``sizes`` only, so that the memory that they take can be measured. Raises the error of a failure."""

    def decode(
        self, model: Model, chunks: Sequence[ChunkView], device_tokens: DeviceTokens | None
    ) -> StepLogits | None:
        """Compute a whole step of ``chunks``, logits included; ``None``: this executor does not compute such a step.

        ``device_tokens``: tokens of the step that only the device knows, if any. The engine queues its reads of the
        result before the next step is computed. ``model`` differs from the captured one after a weight update.
        """
        return None

    def hidden(self, model: Model, batch: ForwardBatch) -> Tensor | None:
        """Compute the hidden states ``[T, hidden]`` of a planned step; ``None``: this executor does not.

        The tensor may be overwritten by the next step. It is not called for a step that has a ``ModelPhase.context``.
        """
        return None

    def run_command(self, model: Model, command: bytes) -> None:
        """Follow, on a worker rank, a command that rank 0 has sent with ``ExtensionRanks.send``.

        An exception ends the worker rank.
        """


class ExecutionPhase:
    """The forward pass of a step. An extension has this phase or ``RankPhase``, as both follow commands of rank 0."""

    memory_name: str = "executor"
    """The purpose of the executor's memory, as messages and the report of memory use name it."""
    memory_advice: str = ""
    """Advice to the user if the memory does not suffice, as the continuation of a sentence."""

    def executor(self, context: ExecutionContext) -> StepExecutor | None:
        """Return the executor of a KV pool; ``None`` if there is none for this backend.

        Called with a small pool first if the memory of the executor has to be measured, and where the spec says
        ``worker_ranks=True``, on each worker rank. An earlier executor is not used afterwards.
        """
        return None
