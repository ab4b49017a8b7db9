"""Schedule policies: the order of admission; and time slices, deadlines and limits of callers, which apply to all."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ScheduleSpec, StepExtensionSpec, hookimpl

POLICIES = "sglang_plug_backends.schedule.policies"
CALLERS = "sglang_plug_backends.schedule.callers"


@hookimpl
def register_schedule_policies() -> Iterator[ScheduleSpec]:
    yield ScheduleSpec(
        name="fair",
        target=f"{CALLERS}:FairShare",
        settings=f"{CALLERS}:FairSettings",
        summary="the caller that was served least first; first come, first served within a caller",
    )
    yield ScheduleSpec(
        name="fair-lpm",
        target=f"{CALLERS}:FairShareLongestPrefix",
        settings=f"{CALLERS}:FairSettings",
        summary="the caller that was served least first; the longest cached prefix first within a caller",
    )
    yield ScheduleSpec(
        name="deadline", target=f"{POLICIES}:EarliestDeadline", summary="the earliest deadline of a request first"
    )
    yield ScheduleSpec(name="fcfs", target=f"{POLICIES}:FirstCome", summary="first come, first served")
    yield ScheduleSpec(name="lpm", target=f"{POLICIES}:LongestPrefix", summary="the longest cached prefix first")
    yield ScheduleSpec(name="priority", target=f"{POLICIES}:Priority", summary="the highest request priority first")
    yield ScheduleSpec(
        name="dfs-weight",
        target=f"{POLICIES}:DepthFirst",
        summary="depth first through the cached prefixes, those that most requests wait for first",
    )


@hookimpl
def register_step_extensions() -> Iterator[StepExtensionSpec]:
    yield StepExtensionSpec(
        name="time-slices",
        target="sglang_plug_backends.schedule.time_slices:build",
        summary="preempts long-running sequences in favour of requests that have waited for long",
    )
    yield StepExtensionSpec(
        name="caller-limits",
        target="sglang_plug_backends.schedule.caller_limits:build",
        summary="limits of single callers: --max-running-per-caller and --max-queued-per-caller",
    )
    yield StepExtensionSpec(
        name="deadlines",
        target="sglang_plug_backends.schedule.deadlines:build",
        summary="refuses requests that would miss their deadlines before they are computed",
        serves=("deadline",),
    )


@hookimpl(trylast=True)
def choose_component(kind: str) -> str | None:
    return "fair" if kind == "schedule" else None
