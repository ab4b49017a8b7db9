"""The extension points of an engine: for each, the methods of the extensions that implement it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, cast, get_args

from sglang_plug.config import ConfigError
from sglang_plug.contracts.extension.base import StepExtension
from sglang_plug.contracts.extension.execution import ExecutionPhase
from sglang_plug.contracts.extension.memory_phases import MemoryPhase, StatePhase
from sglang_plug.contracts.extension.phases import PHASES
from sglang_plug.contracts.extension.preemption import PreemptionPhase
from sglang_plug.contracts.extension.queueing import QueuePhase, QueueView
from sglang_plug.contracts.extension.request_phases import AdmissionPhase, PlanningPhase
from sglang_plug.contracts.extension.sampling_phases import BlockingRequest, HoldPhase, PendingMask, TokenDecision
from sglang_plug.contracts.extension.step_budget import StepBudgetPhase
from sglang_plug.contracts.extension.step_phases import GraphPhase, RankPhase, RankStep, StaticInputPhase
from sglang_plug.contracts.extension.views import (
    ChunkView,
    PrefixPool,
    PromptLayout,
    SequenceView,
    StepPlan,
    TensorStore,
)
from sglang_plug.contracts.model.batch import ForwardBatch
from sglang_plug.contracts.model.kernels import Kernels
from sglang_plug.contracts.model.model import Model
from sglang_plug.contracts.request import Output, Request, RequestError, RequestPart
from sglang_plug.contracts.serving.observer import MetricCounter, MetricGauge, StepStats
from sglang_plug.engine.sequences.sequence import Sequence as EngineSequence

logger = logging.getLogger(__name__)

StepContext = AbstractContextManager[None]
OBJECTS: Mapping[type, str] = {
    GraphPhase: "graphs",
    HoldPhase: "hold_phases",
    StaticInputPhase: "static_inputs",
    QueuePhase: "queue_phases",
    StatePhase: "states",
    MemoryPhase: "memory",
}
"""Phases whose methods belong together: the points hold the extensions themselves, by field."""
NAMED = frozenset({"layout", "constrains", "controls"})
"""Methods that the points hold by the name of the extension, because errors about two of them name both."""
DEFAULT_STEP_BUDGET, DEFAULT_PREEMPTION = StepBudgetPhase(), PreemptionPhase()
"""Used if no extension has the phase: the token budget is the only limit of a step, and no sequence is preempted."""
EXCLUSIVE: Mapping[type, tuple[str, Any, str]] = {
    StepBudgetPhase: ("step_budget", DEFAULT_STEP_BUDGET, "choose how many prompt tokens a step has"),
    PreemptionPhase: ("preemption", DEFAULT_PREEMPTION, "preempt running sequences"),
}
"""Phases that one extension at most has: the field of the points, its default, and what the extension does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionPoints:
    """Bound methods of the extensions of one engine, in the order of the extensions."""

    admission: tuple[AdmissionPhase, ...] = ()
    """The extensions that take part in admission."""
    layout: Mapping[str, Callable[[SequenceView], PromptLayout | None]] = field(default_factory=dict)
    """By the name of the extension, for errors."""
    cache_key: tuple[Callable[[SequenceView], str], ...] = ()
    finished: tuple[Callable[[SequenceView], None], ...] = ()
    hold_phases: tuple[HoldPhase, ...] = ()
    """The extensions that may hold requests."""
    queue_phases: tuple[QueuePhase, ...] = ()
    """The extensions that decide which requests may wait."""
    order: tuple[Callable[[list[Any], Sequence[Any]], list[Any]], ...] = ()
    plan: tuple[Callable[[StepPlan], None], ...] = ()
    step_budget: StepBudgetPhase = DEFAULT_STEP_BUDGET
    """The extension that chooses how many prompt tokens a step has."""
    preemption: PreemptionPhase = DEFAULT_PREEMPTION
    """The extension that preempts running sequences."""
    waits_for: tuple[Callable[[Sequence[ChunkView]], bool], ...] = ()
    kernels: tuple[Callable[[Kernels], Kernels], ...] = ()
    inspect: tuple[Callable[[Model], None], ...] = ()
    install: tuple[Callable[[Model, Kernels], None], ...] = ()
    context: tuple[Callable[[Sequence[ChunkView], Sequence[int]], StepContext | None], ...] = ()
    prepare: tuple[Callable[[Sequence[ChunkView], ForwardBatch], None], ...] = ()
    before_forward: tuple[Callable[[Sequence[ChunkView]], None], ...] = ()
    after_forward: tuple[Callable[[Sequence[ChunkView]], None], ...] = ()
    graphs: tuple[GraphPhase, ...] = ()
    """The extensions that take part in graphs of decode steps."""
    static_inputs: tuple[StaticInputPhase, ...] = ()
    """The extensions with an input of every captured decode step."""
    execution_phases: Mapping[str, ExecutionPhase] = field(default_factory=dict)
    """The extensions that compute forward passes, by name."""
    rank_step: Mapping[str, Callable[[Sequence[ChunkView], ForwardBatch], RankStep | None]] = field(
        default_factory=dict
    )
    prepare_step: Mapping[str, Callable[[RankStep, ForwardBatch], StepContext | None]] = field(default_factory=dict)
    handle_command: Mapping[str, Callable[[bytes], None]] = field(default_factory=dict)
    """The methods of ``RankPhase`` by the name of the extension, which messages to worker ranks contain."""
    constrains: Mapping[str, Callable[[Request], bool]] = field(default_factory=dict)
    """By the name of the extension, for errors."""
    allowed: tuple[Callable[..., PendingMask | None], ...] = ()
    sampled: tuple[Callable[[Sequence[SequenceView], Sequence[int]], Mapping[int, TokenDecision]], ...] = ()
    verified: tuple[Callable[[SequenceView, int, int], None], ...] = ()
    output: tuple[Callable[[SequenceView, Output], Output], ...] = ()
    start: tuple[Callable[[], None], ...] = ()
    step_done: tuple[Callable[[StepStats], None], ...] = ()
    idle_timeout: tuple[Callable[[], float | None], ...] = ()
    between_steps: tuple[Callable[[], None], ...] = ()
    counters: tuple[Callable[[], Iterable[MetricCounter]], ...] = ()
    gauges: tuple[Callable[[], Iterable[MetricGauge]], ...] = ()
    controls: Mapping[str, Callable[[], Mapping[str, Callable[..., Any]]]] = field(default_factory=dict)
    """By the name of the extension, for errors."""
    info: tuple[Callable[[], Mapping[str, Any]], ...] = ()
    check_step: tuple[Callable[[], None], ...] = ()
    blocking_request: tuple[Callable[[], BlockingRequest | None], ...] = ()
    states: tuple[StatePhase, ...] = ()
    """The extensions whose memory sequences own."""
    memory: tuple[MemoryPhase, ...] = ()
    """The extensions with pools."""
    use_prefixes: tuple[Callable[[PrefixPool], None], ...] = ()
    tensor_store: tuple[Callable[[], TensorStore | None], ...] = ()
    use_tensor_store: tuple[Callable[[TensorStore], None], ...] = ()
    prefix_cached: tuple[Callable[[SequenceView, int], None], ...] = ()
    prefix_restored: tuple[Callable[[SequenceView, Sequence[int]], None], ...] = ()
    evicted: tuple[Callable[[Sequence[int]], None], ...] = ()
    restore_prefix: tuple[Callable[[SequenceView, bool], bool], ...] = ()
    reset: tuple[Callable[[], None], ...] = ()
    forget_stored: tuple[Callable[[], None], ...] = ()
    check: tuple[Callable[[], None], ...] = ()
    largest_request: tuple[Callable[[int], Request | None], ...] = ()
    close: tuple[Callable[[], None], ...] = ()
    max_draft_rows: int = 0
    """Largest number of rows that are sampled in one step with draft tokens."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Request fields that no extension serves, or that one refuses, with the message of the refusal."""
    labels: tuple[tuple[StepExtension, str], ...] = ()
    """All extensions, as errors name them."""

    def owner(self, part: object) -> str:
        """Return the extension that ``part`` is, or is a method of, as errors name it."""
        owner = getattr(part, "__self__", part)
        unknown = f"the step extension {type(owner).__name__}"
        return next((label for extension, label in self.labels if extension is owner), unknown)

    def is_constrained(self, request: Request) -> bool:
        """Report whether an extension constrains the output. Raises ``RequestError`` if two of them do."""
        constraining = [name for name, constrains in self.constrains.items() if constrains(request)]
        if len(constraining) > 1:
            names = " and ".join(map(repr, constraining))
            raise RequestError(f"the step extensions {names} both constrain this output; block one of them", 500)
        return bool(constraining)

    def admit_sequence(self, sequence: EngineSequence) -> None:
        """Let the extensions admit ``sequence``, lay it out, and separate it in the prefix cache.

        Raises ``RequestError`` if one of them refuses it, and the error of one that fails; ``finished`` of those that
        had admitted it is called then.
        """
        for name, message in self.refusals.items():
            if getattr(sequence.request, name) not in (None, ()):
                about: Any = name if name in get_args(RequestPart) else ""
                raise RequestError(message, about=about)
        admitted: list[AdmissionPhase] = []
        try:
            for extension in self.admission:
                extension.admit(sequence)
                admitted.append(extension)
            if self.layout:
                sequence.layout = self._prompt_layout(sequence)
            for cache_key in self.cache_key:
                key = cache_key(sequence)
                sequence.salt = f"{len(key)}:{key}{sequence.salt}"  # the length, so that no other two join to the same
        except Exception:
            self._call_finished([extension.finished for extension in admitted], sequence)
            raise

    def end_sequence(self, sequence: EngineSequence) -> None:
        """Tell the extensions that the request of ``sequence``, which was admitted, is over; called once for each."""
        self._call_finished(self.finished, sequence)

    def _call_finished(self, methods: Iterable[Callable[[SequenceView], None]], sequence: EngineSequence) -> None:
        """Call all ``methods``; an error of one is logged, so that the others still release what the request holds."""
        for finished in methods:
            try:
                finished(sequence)
            except Exception:
                logger.exception("%s: finished() failed for request %r", self.owner(finished), sequence.request.id)

    def sequence_queued(self, sequence: EngineSequence, queue: QueueView) -> None:
        """Tell the extensions that ``sequence`` is queued. Raises ``RequestError`` if one of them refuses it."""
        for extension in self.queue_phases:
            extension.queued(sequence, queue)

    def end_waiting(self) -> list[tuple[EngineSequence, RequestError]]:
        """Return the sequences that should wait no longer, and the errors that end their requests."""
        return [cast(Any, ended) for extension in self.queue_phases for ended in extension.end_waiting()]

    def _prompt_layout(self, sequence: EngineSequence) -> PromptLayout | None:
        """Return the layout of a prompt. Raises ``RequestError`` if two extensions have one."""
        results = {name: layout(sequence) for name, layout in self.layout.items()}
        layouts = {name: layout for name, layout in results.items() if layout is not None}
        if len(layouts) > 1:
            names = " and ".join(map(repr, layouts))
            raise RequestError(f"the step extensions {names} both lay out this prompt; block one of them", 500)
        return next(iter(layouts.values()), None)

    def step_contexts(self, chunks: Sequence[ChunkView], query_lens: Sequence[int]) -> list[StepContext]:
        """Return what surrounds the forward pass of ``chunks``, the outermost first."""
        contexts = [context(chunks, query_lens) for context in self.context]
        return [context for context in contexts if context is not None]

    def rank_steps(self, chunks: Sequence[ChunkView], batch: ForwardBatch) -> dict[str, RankStep]:
        """Return what worker ranks have to know about a step, by extension."""
        steps = {name: rank_step(chunks, batch) for name, rank_step in self.rank_step.items()}
        return {name: step for name, step in steps.items() if step is not None}

    def decisions(self, sequences: Sequence[SequenceView], tokens: Sequence[int]) -> Mapping[int, TokenDecision]:
        """Return the decisions of all extensions about sampled ``tokens``, by row; a wrong one ends its request."""
        decisions: dict[int, TokenDecision] = {}
        deciding: dict[int, Callable[..., Any]] = {}
        for sampled in self.sampled:
            for row, decision in sampled(sequences, tokens).items():
                problem = self._decision_problem(sampled, row, decision, sequences, deciding.get(row))
                if problem is not None:
                    logger.error("request %r: %s", sequences[row].request.id, problem)
                    decision = TokenDecision(error=RequestError(problem, 500))
                decisions[row], deciding[row] = decision, sampled
        return decisions

    def _decision_problem(
        self,
        sampled: Callable[..., Any],
        row: int,
        decision: TokenDecision,
        sequences: Sequence[SequenceView],
        other: Callable[..., Any] | None,
    ) -> str | None:
        """Return the problem of a decision, if any; ``other`` is the method that has decided about ``row`` too.

        Raises ``RuntimeError`` if there is no such row.
        """
        if not 0 <= row < len(sequences):
            raise RuntimeError(f"{self.owner(sampled)}: sampled() decides about row {row} of {len(sequences)}")
        sequence = sequences[row]
        if other is not None:
            return f"{self.owner(other)} and {self.owner(sampled)} both decide about this token; block one of them"
        if not sequence.constrained:
            return f"{self.owner(sampled)}: sampled() decides about an output that it does not constrain"
        if decision.forced:
            return self.forced_problem(sampled, decision.forced, sequence.limit - len(sequence.tokens) - 1)
        return None

    def forced_problem(self, method: Callable[..., Any], forced: Sequence[int], room: int) -> str | None:
        """Return the problem if ``method`` of an extension forces more tokens than there is ``room`` for."""
        if len(forced) <= max(0, room):
            return None
        name = getattr(method, "__name__", "")
        return f"{self.owner(method)}: {name}() forces {len(forced)} tokens, and there is room for {max(0, room)}"

    def shortest_idle_timeout(self) -> float | None:
        """Return the seconds that an idle engine may wait; ``None``: no extension limits them."""
        timeouts = (idle_timeout() for idle_timeout in self.idle_timeout)
        return min((max(0.0, timeout) for timeout in timeouts if timeout is not None), default=None)

    def share_tensor_store(self) -> None:
        """Give the store of tensors to the extensions that use one. Raises ``ConfigError`` if there are two stores."""
        stores = {self.owner(make): store for make in self.tensor_store if (store := make()) is not None}
        if len(stores) > 1:
            raise ConfigError(f"{' and '.join(stores)} both have a store of tensors; block one of them")
        for store in stores.values():
            for use in self.use_tensor_store:
                use(store)

    def all_info(self, own: Iterable[str] = ()) -> dict[str, Any]:
        """Return the plain data of all extensions for ``/server_info``.

        Raises ``ConfigError`` if two of them use the same name, or one of ``own``, the engine's names.
        """
        owners, collected = dict.fromkeys(own, "the engine"), dict[str, Any]()
        for info in self.info:
            for name, value in info().items():
                if (other := owners.setdefault(name, self.owner(info))) != self.owner(info):
                    raise ConfigError(f"{other} and {self.owner(info)} both have {name!r} in info(); block one of them")
                collected[name] = value
        return collected


def extension_points(
    extensions: Mapping[str, StepExtension],
    refusals: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> ExtensionPoints:
    """Collect the methods that ``extensions``, by name and in their order, override.

    ``labels``: the extensions as errors name them, by name.
    """
    labels = labels or {name: f"step-extension {name!r}" for name in extensions}
    methods: dict[str, Any] = {}
    for base in (StepExtension, *PHASES):
        if base in OBJECTS or base in EXCLUSIVE or base is ExecutionPhase:
            continue
        for name in (name for name, member in vars(base).items() if callable(member) and not name.startswith("_")):
            if name == "admit":
                continue
            by_extension = {
                key: getattr(extension, name)
                for key, extension in extensions.items()
                if overrides(extension, base, name)
            }
            methods[name] = by_extension if base is RankPhase or name in NAMED else tuple(by_extension.values())
    methods["admission"] = tuple(
        extension for extension in extensions.values() if isinstance(extension, AdmissionPhase)
    )
    for base, name in OBJECTS.items():
        methods[name] = tuple(extension for extension in extensions.values() if isinstance(extension, base))
    methods["execution_phases"] = {
        name: extension for name, extension in extensions.items() if isinstance(extension, ExecutionPhase)
    }
    methods |= {name: _only(extensions, phase) for phase, (name, _, _) in EXCLUSIVE.items()}
    rows = (extension.max_draft_rows for extension in extensions.values() if isinstance(extension, PlanningPhase))
    return ExtensionPoints(
        **methods,
        max_draft_rows=max(rows, default=0),
        refusals=refusals or {},
        labels=tuple((extension, labels[name]) for name, extension in extensions.items()),
    )


def _only(extensions: Mapping[str, StepExtension], phase: type) -> Any:
    """Return the extension that has an exclusive ``phase``, or its default. Raises ``ConfigError`` if several have."""
    _, default, action = EXCLUSIVE[phase]
    having = {name: extension for name, extension in extensions.items() if isinstance(extension, phase)}
    if len(having) > 1:
        names = " and ".join(map(repr, having))
        raise ConfigError(
            f"the step extensions {names} all {action}; keep one of them, and block the others with --block-plugin "
            "step-extension:NAME"
        )
    return next(iter(having.values()), default)


def overrides(extension: StepExtension, base: type, name: str) -> bool:
    """Report whether ``extension`` implements the method ``name`` of the phase ``base``."""
    return isinstance(extension, base) and getattr(type(extension), name) is not getattr(base, name)
