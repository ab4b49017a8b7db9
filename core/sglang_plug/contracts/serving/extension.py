"""The contract of step extensions: plugins that take part in the steps of an engine.

The engine knows tokens, KV slots and tensors. A step extension adds a feature to it, such as speculative decoding or
LoRA adapters. It is built once per engine and implements the phases that it needs: ``AdmissionPhase``,
``PlanningPhase``, ``ModelPhase``, ``GraphPhase``, ``RankPhase``, ``OutputPhase``, ``ServicePhase``. For each method the
engine keeps a list of the extensions that override it; an empty list costs one truth test per step, and nothing costs
anything per token.

All methods run in the engine's thread, on rank 0 where several ranks share a model. Where the spec says
``worker_ranks=True``, the extension is also built on each other rank, a worker rank: of that object the engine calls
only the methods of ``ModelPhase`` (but not ``context``), and the ``follow`` methods of ``RankPhase``.

An extension keeps what it knows of a sequence in ``sequence.extras[self]``. An exception of ``admit`` that is a
``RequestError`` ends that request; any other exception fails the step, and the error names the extension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from sglang_plug.config import EngineConfig
    from sglang_plug.contracts.model.kernels import Kernels
    from sglang_plug.contracts.model.model import Model
    from sglang_plug.contracts.request import Output, Request
    from sglang_plug.plugins.registry import Component, Facts, Plugins


class SequenceView(Protocol):
    """A sequence as extensions see it. They change nothing of it but their own entry of ``extras``."""

    @property
    def request(self) -> Request:
        """The request."""

    @property
    def tokens(self) -> Sequence[int]:
        """The prompt and everything generated; the list grows, so copy what is to be kept."""

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt."""

    @property
    def generated(self) -> int:
        """Tokens generated so far."""

    @property
    def limit(self) -> int:
        """Most tokens that the sequence may grow to."""

    @property
    def accepts_drafts(self) -> bool:
        """True if draft tokens of this sequence can be verified in one step."""

    @property
    def extras(self) -> dict[Any, Any]:
        """State of extensions, by extension."""


class ChunkView(Protocol):
    """The part of a sequence that a step computes: its next ``count`` tokens, then ``drafts``."""

    @property
    def sequence(self) -> SequenceView:
        """The sequence that the tokens belong to."""

    @property
    def count(self) -> int:
        """Tokens of the sequence, drafts excluded."""

    @property
    def complete(self) -> bool:
        """True if the last token of the sequence is computed, so that the next one is sampled."""

    @property
    def drafts(self) -> tuple[int, ...]:
        """Draft tokens that are verified behind the last token."""


class StepPlan(Protocol):
    """A step that is planned and not launched yet."""

    @property
    def chunks(self) -> Sequence[ChunkView]:
        """All chunks of the step; each has its KV slots."""

    @property
    def budget(self) -> int:
        """Most tokens of the step."""

    def add_drafts(self, index: int, drafts: tuple[int, ...]) -> bool:
        """Verify ``drafts`` behind the chunk at ``index``, with KV slots that are free; False if there are too few."""


class ExtensionRanks(Protocol):
    """The ranks that share the model, as an extension sees them; without tensor parallelism there is one."""

    @property
    def rank(self) -> int:
        """Number of this rank; 0 schedules, the others are worker ranks."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    def send(self, command: bytes) -> None:
        """Let every worker rank call ``follow_command`` of this extension; only rank 0 may send, between two steps."""

    def agreed(self, done: bool) -> bool:
        """Return True if ``done`` is true on every rank. All ranks must call it, after the same command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionContext:
    """Facts about an engine when its step extensions are built, before the weights are loaded."""

    config: EngineConfig
    plugins: Plugins
    facts: Facts
    """Names of device and dtype, checkpoint configuration and attention shape."""
    device: torch.device
    """This rank's device."""
    dtype: torch.dtype
    """The dtype that the model computes in."""
    model: Component
    """The chosen model, described by a ``ModelSpec``."""
    ranks: ExtensionRanks
    settings: Any
    """The extension's own settings; ``None`` if its spec declares none."""
    tasks: tuple[str, ...]
    vocab_size: int
    rolls_back: bool
    """False if the model has state that cannot be reset to an earlier token, so that no drafts can be verified."""
    make: Callable[[Component, str, type], Any]
    """``make(component, reason, contract)`` constructs a component and lists it among the chosen ones of the server.

    Raises ``PluginError`` if the result does not fulfil ``contract``."""
    describe: Callable[[BaseException, Component], str]
    """An error in one line that names the component it comes from."""


class StepExtension:
    """Base class of step extensions. A subclass also inherits from the phases that it implements."""

    def close(self) -> None:
        """Release what the extension holds; called once, when the engine ends."""


class AdmissionPhase:
    """The life of a request. Override what is needed; the methods of this class are never called."""

    def admit(self, sequence: SequenceView) -> None:
        """Check a request and prepare its state, before it is queued; called once. Raise ``RequestError`` to refuse."""

    def cache_key(self, sequence: SequenceView) -> str:
        """Return a part of the name of the sequence's prefix namespace: prefixes are shared only where all parts agree.

        Called once, after ``admit`` of all extensions.
        """
        return ""

    def finished(self, sequence: SequenceView) -> None:
        """The request is over: finished, aborted or failed. Called once for each queued request."""


class PlanningPhase:
    """The planning of steps. Override what is needed; the methods of this class are never called."""

    most_draft_rows: int = 0
    """Most rows that are sampled in one step with draft tokens; memory for their logits is reserved at start."""

    def order(self, waiting: list[SequenceView], running: Sequence[SequenceView]) -> list[SequenceView]:
        """Return the waiting sequences that may be admitted, the first to admit first.

        Called with the order of the schedule policy; may leave out or move sequences, and may not add any.
        """
        return waiting

    def plan(self, step: StepPlan) -> None:
        """Add draft tokens to a step, after everything else is planned."""

    def waits_for(self, chunks: Sequence[ChunkView]) -> bool:
        """Report whether the next step should be planned only when the results of ``chunks`` are known.

        By default the engine plans one step ahead where it can.
        """
        return False


class ModelPhase:
    """The model of this rank. Override what is needed; the methods of this class are never called."""

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


class GraphPhase:
    """The part of an extension in graphs of decode steps, which cannot call Python.

    An extension with a ``context`` needs it. The engine captures plain graphs outside of every context, and further
    ones inside ``capturing``. A sequence takes part by a number, which its row of a static tensor holds.
    """

    graph_label: str = ""
    """What such steps have, as the log says it: "Steps with <label> run without graphs"."""

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


class RankPhase:
    """The part of an extension on worker ranks, where the spec says ``worker_ranks=True``."""

    def rank_step(self, chunks: Sequence[ChunkView]) -> bytes | None:
        """Return what the worker ranks have to know about a step that is not replayed; ``None``: nothing."""
        return None

    def follow_step(self, data: bytes, query_lens: Sequence[int]) -> AbstractContextManager[None]:
        """Return what surrounds the forward pass on this worker rank, in place of ``context``.

        ``data`` is what ``rank_step`` returned on rank 0.
        """
        raise NotImplementedError

    def follow_command(self, command: bytes) -> None:
        """Follow a command that rank 0 has sent with ``ExtensionRanks.send``. An exception ends the worker rank."""


class OutputPhase:
    """The results of steps. Override what is needed; the methods of this class are never called."""

    def verified(self, sequence: SequenceView, drafted: int, accepted: int) -> None:
        """A step verified ``drafted`` draft tokens, and the first ``accepted`` of them are tokens of the sequence."""

    def output(self, sequence: SequenceView, output: Output) -> Output:
        """Return what the client is told of a step; may add to it, and may not change its tokens."""
        return output


class ServicePhase:
    """Operation of the server. Override what is needed; the methods of this class are never called."""

    def controls(self) -> Mapping[str, Callable[..., Any]]:
        """Control calls by name, which routes can make between two steps."""
        return {}

    def info(self) -> Mapping[str, Any]:
        """Plain data for ``/server_info``; also collected once when the engine is ready."""
        return {}


BuildExtension = Callable[[ExtensionContext], StepExtension | None]
"""Target of a ``StepExtensionSpec``: ``None`` if the configuration does not use the feature. Raises ``ConfigError``."""
PHASES: tuple[type, ...] = (
    AdmissionPhase,
    PlanningPhase,
    ModelPhase,
    GraphPhase,
    RankPhase,
    OutputPhase,
    ServicePhase,
)
