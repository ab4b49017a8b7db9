"""The contract of step extensions: plugins that take part in the steps of an engine.

The engine knows tokens, KV slots and tensors. A step extension adds a feature to it, such as speculative decoding. It
is built once per engine and implements the phases that it needs: ``AdmissionPhase``, ``PlanningPhase``,
``OutputPhase``, ``ServicePhase``. For each method the engine keeps a list of the extensions that override it; an empty
list costs one truth test per step, and nothing costs anything per token.

All methods run in the engine's thread, on rank 0 where several ranks share a model. An extension keeps what it knows of
a sequence in ``sequence.extras[self]``. An exception of ``admit`` that is a ``RequestError`` ends that request; any
other exception fails the step, and the error names the extension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from sglang_plug.config import EngineConfig
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionContext:
    """Facts about an engine when its step extensions are built, before the weights are loaded."""

    config: EngineConfig
    plugins: Plugins
    facts: Facts
    """Device, dtype, checkpoint configuration and attention shape."""
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
        """Plain data for ``/server_info``."""
        return {}


BuildExtension = Callable[[ExtensionContext], StepExtension | None]
"""Target of a ``StepExtensionSpec``: ``None`` if the configuration does not use the feature. Raises ``ConfigError``."""
PHASES: tuple[type, ...] = (AdmissionPhase, PlanningPhase, OutputPhase, ServicePhase)
