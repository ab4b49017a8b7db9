"""Every method of a step extension is collected once, under its own name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from sglang_plug.contracts.extension.base import StepExtension
from sglang_plug.contracts.extension.execution import ExecutionPhase
from sglang_plug.contracts.extension.memory_phases import MemoryPhase, StatePhase, StoredStatePhase
from sglang_plug.contracts.extension.phases import PHASES
from sglang_plug.contracts.extension.preemption import PreemptionPhase
from sglang_plug.contracts.extension.queueing import QueuePhase
from sglang_plug.contracts.extension.request_phases import AdmissionPhase, PlanningPhase
from sglang_plug.contracts.extension.sampling_phases import HoldPhase
from sglang_plug.contracts.extension.step_budget import StepBudgetPhase
from sglang_plug.contracts.extension.step_phases import GraphPhase, StaticInputPhase
from sglang_plug.engine.extensions.collected import CollectedExtensions
from sglang_plug.engine.extensions.names import ExtensionNames
from sglang_plug.engine.extensions.points import extension_points

OBJECTS = (
    AdmissionPhase,
    ExecutionPhase,
    GraphPhase,
    HoldPhase,
    MemoryPhase,
    PreemptionPhase,
    QueuePhase,
    StatePhase,
    StaticInputPhase,
    StepBudgetPhase,
    StoredStatePhase,
)
"""Phases whose extensions the engine calls directly, instead of collected methods."""


def phase_methods() -> list[str]:
    """Return the names of all methods of all phases, without properties."""
    methods = (vars(base).items() for base in (StepExtension, *PHASES))
    return [name for members in methods for name, member in members if callable(member) and not name.startswith("_")]


def all_phases() -> StepExtension:
    """Return an extension that overrides every method of every phase."""
    members = dict[str, Any]()
    for name in phase_methods():

        def override(self: object, *arguments: Any, **options: Any) -> None: ...

        override.__name__ = name
        members[name] = override
    extension: StepExtension = type("Everything", (StepExtension, *PHASES), members)()
    return extension


def reachable_methods(points: object, extension: StepExtension) -> Iterator[str]:
    """Yield the names of the methods that the engine can call: collected ones, and those of collected extensions."""
    values = [getattr(points, field.name) for field in fields(points)] if is_dataclass(points) else [points]
    for value in values:
        parts = [*value.values()] if isinstance(value, Mapping) else [*value] if isinstance(value, tuple) else [value]
        for part in parts:
            if getattr(part, "__self__", None) is extension:
                yield part.__name__
            elif is_dataclass(part):
                yield from reachable_methods(part, extension)


def test_every_method_of_every_phase_is_collected_or_belongs_to_a_collected_extension() -> None:
    extension = all_phases()
    points = extension_points({"everything": extension})
    collected_objects = {
        *points.requests.admission,
        *points.requests.hold_phases,
        *points.requests.queue_phases,
        *points.forward.graphs,
        *points.forward.static_inputs,
        *points.forward.execution_phases.values(),
        *points.cache.states,
        *points.start.memory,
        *points.start.stored_states,
        points.planning.step_budget,
        points.planning.preemption,
    }
    assert collected_objects == {extension}
    collected = set(reachable_methods(points, extension))
    of_objects = {name for phase in OBJECTS for name in vars(phase)}
    assert set(phase_methods()) <= collected | of_objects


def test_no_two_phases_have_a_method_of_the_same_name() -> None:
    assert len(set(phase_methods())) == len(phase_methods())


def test_a_function_that_is_no_method_of_a_phase_cannot_be_collected() -> None:
    def plan(self: PlanningPhase, step: Any) -> None: ...

    collected = CollectedExtensions({"everything": all_phases()}, ExtensionNames())
    with pytest.raises(ValueError, match="plan is not a method of exactly one phase of step extensions"):
        collected.methods(plan)
    assert collected.methods(PlanningPhase.plan) and collected.objects(ExecutionPhase)
