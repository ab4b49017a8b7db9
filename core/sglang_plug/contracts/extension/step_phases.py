"""Phases of step extensions in the computation of a step: the model, graphs and worker ranks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from sglang_plug.contracts.model.batch import ForwardBatch
    from sglang_plug.contracts.model.kernels import Kernels
    from sglang_plug.contracts.model.model import Model

    from .views import ChunkView


class ModelPhase:
    """The model of this rank. Override the methods that are needed; the others do nothing."""

    def kernels(self, kernels: Kernels) -> Kernels:
        """Return the kernel set that the model is built with; it may lack optional functions of the chosen one."""
        return kernels

    def inspect(self, model: Model) -> None:
        """Check a model whose weights are not loaded yet. Raise ``ConfigError`` if it cannot be served."""

    def install(self, model: Model, kernels: Kernels) -> None:
        """Attach to a model with its weights: at the start, and after each update, which makes a new model.

        At the start of rank 0, the worker ranks have loaded their weights and follow commands. Raise ``ConfigError`` if
        the model cannot be served.
        """

    def context(self, chunks: Sequence[ChunkView], query_lens: Sequence[int]) -> AbstractContextManager[None] | None:
        """Return what surrounds the forward pass of ``chunks`` with ``query_lens`` tokens; ``None`` if nothing does.

        A step with a context is not replayed as piecewise graphs. Graphs of decode steps have no contexts at all, see
        ``GraphPhase``. The context of the first extension is the outermost.
        """
        return None


class InputPhase:
    """The inputs of a step. Override the methods that are needed; the others do nothing."""

    def prepare(self, chunks: Sequence[ChunkView], batch: ForwardBatch) -> None:
        """Set what the model needs besides tokens: ``batch.multimodal`` or ``batch.recurrent``.

        Called for each step that is not replayed as a whole, before the attention backend plans it.
        """


class ForwardPhase:
    """Work on the device around a step. Override the methods that are needed; the others do nothing."""

    def before_forward(self, chunks: Sequence[ChunkView]) -> None:
        """Queue work before the forward pass of ``chunks``, which may be the replay of a graph."""

    def after_forward(self, chunks: Sequence[ChunkView]) -> None:
        """Queue work after the forward pass of ``chunks``."""


class StaticInputPhase:
    """An input of every captured decode step: a number per row, such as the row of a state in a pool."""

    def static_input(self, chunk: ChunkView) -> int:
        """Return the number of the chunk's row; rows without a chunk have 0."""
        return 0

    def prepare_captured(self, batch: ForwardBatch, numbers: Tensor) -> None:
        """Set the inputs of a step that is captured, instead of ``InputPhase.prepare``.

        ``numbers`` ``[rows]`` int64 keeps its address and changes between replays. Worker ranks do not have it.
        """


class GraphPhase:
    """The part of an extension in graphs of decode steps, which cannot call Python.

    An extension with a ``context`` needs it. The engine captures plain graphs outside of every context, and further
    ones inside ``capturing``. A sequence takes part by a number, which its row of a static tensor holds.
    """

    graph_label: str = ""
    """The noun for the extension's part in the log message "Steps with <label> run without graphs"."""

    @property
    def graph_version(self) -> int:
        """A number that changes whenever graphs that were captured inside ``capturing`` are no longer valid."""
        return 0

    def graph_input(self, chunk: ChunkView) -> int | None:
        """Return the number of the chunk's row; 0 if plain graphs compute it, ``None`` if no graph does."""
        return 0

    def capturing(self, numbers: Tensor) -> AbstractContextManager[None] | None:
        """Return what surrounds a capture, in which each row has the number in ``numbers`` ``[rows]`` int64.

        ``numbers`` keeps its address and changes between replays. ``None``: steps whose numbers are not all 0 are not
        captured. Where several ranks share the model, they never are.
        """
        return None


@dataclass(frozen=True, slots=True)
class RankStep:
    """Data about one step that an extension sends from rank 0 to the worker ranks."""

    data: bytes = b""
    tensors: tuple[Tensor, ...] = ()
    """Tensors on the device of the rank, which the collectives transport."""


class RankPhase:
    """The part of an extension on worker ranks, where the spec says ``worker_ranks=True``."""

    def rank_step(self, chunks: Sequence[ChunkView], batch: ForwardBatch) -> RankStep | None:
        """Return what the worker ranks have to know about a step that is not replayed; ``None``: nothing.

        Called after ``InputPhase.prepare`` of all extensions has changed ``batch``.
        """
        return None

    def prepare_step(self, step: RankStep, batch: ForwardBatch) -> AbstractContextManager[None] | None:
        """Prepare ``batch`` on this worker rank, and return what surrounds its forward pass; ``None``: nothing does.

        ``step`` is what ``rank_step`` returned on rank 0. Called before the attention backend plans the step, in place
        of ``InputPhase.prepare`` and ``ModelPhase.context``, which are not called on worker ranks.
        """
        raise NotImplementedError

    def handle_command(self, command: bytes) -> None:
        """Follow a command that rank 0 has sent with ``ExtensionRanks.send``. An exception ends the worker rank."""
