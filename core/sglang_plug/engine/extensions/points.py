"""The extension points of an engine: for each, the methods of the extensions that implement it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from sglang_plug.contracts.model.kernels import Kernels
from sglang_plug.contracts.model.model import Model
from sglang_plug.contracts.request import Output, RequestError
from sglang_plug.contracts.serving.extension import (
    PHASES,
    ChunkView,
    GraphPhase,
    PlanningPhase,
    RankPhase,
    SequenceView,
    StepExtension,
    StepPlan,
)
from sglang_plug.engine.scheduling.sequence import Sequence as EngineSequence

StepContext = AbstractContextManager[None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionPoints:
    """Bound methods of the extensions of one engine, in the order of the extensions."""

    admit: tuple[Callable[[SequenceView], None], ...] = ()
    cache_key: tuple[Callable[[SequenceView], str], ...] = ()
    finished: tuple[Callable[[SequenceView], None], ...] = ()
    order: tuple[Callable[[list[Any], Sequence[Any]], list[Any]], ...] = ()
    plan: tuple[Callable[[StepPlan], None], ...] = ()
    waits_for: tuple[Callable[[Sequence[ChunkView]], bool], ...] = ()
    kernels: tuple[Callable[[Kernels], Kernels], ...] = ()
    inspect: tuple[Callable[[Model], None], ...] = ()
    install: tuple[Callable[[Model, Kernels], None], ...] = ()
    context: tuple[Callable[[Sequence[ChunkView], Sequence[int]], StepContext | None], ...] = ()
    graphs: tuple[GraphPhase, ...] = ()
    """The extensions that take part in graphs of decode steps."""
    rank_step: Mapping[str, Callable[[Sequence[ChunkView]], bytes | None]] = field(default_factory=dict)
    follow_step: Mapping[str, Callable[[bytes, Sequence[int]], StepContext]] = field(default_factory=dict)
    follow_command: Mapping[str, Callable[[bytes], None]] = field(default_factory=dict)
    """The methods of ``RankPhase`` by the name of the extension, which messages to worker ranks contain."""
    verified: tuple[Callable[[SequenceView, int, int], None], ...] = ()
    output: tuple[Callable[[SequenceView, Output], Output], ...] = ()
    controls: tuple[Callable[[], Mapping[str, Callable[..., Any]]], ...] = ()
    info: tuple[Callable[[], Mapping[str, Any]], ...] = ()
    close: tuple[Callable[[], None], ...] = ()
    most_draft_rows: int = 0
    """Largest number of rows that are sampled in one step with draft tokens."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Request fields that no extension serves, with the message of the refusal."""

    def admit_sequence(self, sequence: EngineSequence) -> None:
        """Let the extensions admit ``sequence``, and separate it in the prefix cache. Raises ``RequestError``."""
        for name, message in self.refusals.items():
            if getattr(sequence.request, name) is not None:
                raise RequestError(message)
        for admit in self.admit:
            admit(sequence)
        for cache_key in self.cache_key:
            key = cache_key(sequence)
            sequence.salt = f"{len(key)}:{key}{sequence.salt}"  # the length, so that no other two join to the same

    def step_contexts(self, chunks: Sequence[ChunkView], query_lens: Sequence[int]) -> list[StepContext]:
        """Return what surrounds the forward pass of ``chunks``, the outermost first."""
        contexts = [context(chunks, query_lens) for context in self.context]
        return [context for context in contexts if context is not None]

    def rank_data(self, chunks: Sequence[ChunkView]) -> dict[str, bytes] | None:
        """Return what worker ranks have to know about a step, by extension; ``None``: nothing."""
        data_by_name = {name: rank_step(chunks) for name, rank_step in self.rank_step.items()}
        return {name: data for name, data in data_by_name.items() if data is not None} or None

    def all_info(self) -> dict[str, Any]:
        """Return the plain data of all extensions for ``/server_info``."""
        return {name: value for info in self.info for name, value in info().items()}


def extension_points(
    extensions: Mapping[str, StepExtension], refusals: Mapping[str, str] | None = None
) -> ExtensionPoints:
    """Collect the methods that ``extensions``, by name and in their order, override."""
    methods: dict[str, Any] = {}
    for base in (StepExtension, *PHASES):
        if base is GraphPhase:
            continue
        for name in (name for name, member in vars(base).items() if callable(member) and not name.startswith("_")):
            by_extension = {
                key: getattr(extension, name)
                for key, extension in extensions.items()
                if overrides(extension, base, name)
            }
            methods[name] = by_extension if base is RankPhase else tuple(by_extension.values())
    rows = (extension.most_draft_rows for extension in extensions.values() if isinstance(extension, PlanningPhase))
    return ExtensionPoints(
        **methods,
        graphs=tuple(one for one in extensions.values() if isinstance(one, GraphPhase)),
        most_draft_rows=max(rows, default=0),
        refusals=refusals or {},
    )


def overrides(extension: StepExtension, base: type, name: str) -> bool:
    """Report whether ``extension`` implements the method ``name`` of the phase ``base``."""
    return isinstance(extension, base) and getattr(type(extension), name) is not getattr(base, name)
