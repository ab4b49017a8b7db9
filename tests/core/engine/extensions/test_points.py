"""Extension points hold the methods that extensions override, and no others."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_plug import AdmissionPhase, ChunkView, PlanningPhase, SequenceView, StepExtension, StepPlan
from sglang_plug.engine.extensions.points import ExtensionPoints, extension_points


class Drafts(StepExtension, PlanningPhase):
    most_draft_rows = 7

    def plan(self, step: StepPlan) -> None: ...


class Watches(StepExtension, AdmissionPhase, PlanningPhase):
    def finished(self, sequence: SequenceView) -> None: ...

    def waits_for(self, chunks: Sequence[ChunkView]) -> bool:
        return True


def test_without_extensions_every_list_is_empty() -> None:
    assert extension_points([]) == ExtensionPoints()


def test_only_overridden_methods_are_collected_in_order() -> None:
    drafts, watches = Drafts(), Watches()
    points = extension_points([watches, drafts])
    assert points.plan == (drafts.plan,) and points.finished == (watches.finished,)
    assert points.waits_for == (watches.waits_for,)
    assert points.admit == points.verified == points.output == points.controls == points.close == ()


def test_memory_is_reserved_for_the_largest_step_with_drafts() -> None:
    assert extension_points([Drafts(), Watches()]).most_draft_rows == 7


def test_a_method_of_a_phase_that_is_not_inherited_is_never_called() -> None:
    class Loose(StepExtension):
        def plan(self, step: StepPlan) -> None: ...

    assert extension_points([Loose()]).plan == ()
