"""The extension points of an engine: for each, the methods of the extensions that implement it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_plug.contracts.request import Output
from sglang_plug.contracts.serving.extension import (
    PHASES,
    ChunkView,
    PlanningPhase,
    SequenceView,
    StepExtension,
    StepPlan,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionPoints:
    """Bound methods of the extensions of one engine, in the order of the extensions."""

    admit: tuple[Callable[[SequenceView], None], ...] = ()
    finished: tuple[Callable[[SequenceView], None], ...] = ()
    order: tuple[Callable[[list[Any], Sequence[Any]], list[Any]], ...] = ()
    plan: tuple[Callable[[StepPlan], None], ...] = ()
    waits_for: tuple[Callable[[Sequence[ChunkView]], bool], ...] = ()
    verified: tuple[Callable[[SequenceView, int, int], None], ...] = ()
    output: tuple[Callable[[SequenceView, Output], Output], ...] = ()
    controls: tuple[Callable[[], Mapping[str, Callable[..., Any]]], ...] = ()
    info: tuple[Callable[[], Mapping[str, Any]], ...] = ()
    close: tuple[Callable[[], None], ...] = ()
    most_draft_rows: int = 0
    """Largest number of rows that are sampled in one step with draft tokens."""


def extension_points(extensions: Iterable[StepExtension]) -> ExtensionPoints:
    """Collect the methods that ``extensions`` override."""
    extensions = tuple(extensions)
    methods: dict[str, tuple[Any, ...]] = {}
    for base in (StepExtension, *PHASES):
        for name in (name for name, member in vars(base).items() if callable(member) and not name.startswith("_")):
            methods[name] = tuple(
                getattr(extension, name)
                for extension in extensions
                if isinstance(extension, base) and getattr(type(extension), name) is not getattr(base, name)
            )
    rows = (extension.most_draft_rows for extension in extensions if isinstance(extension, PlanningPhase))
    return ExtensionPoints(**methods, most_draft_rows=max(rows, default=0))
