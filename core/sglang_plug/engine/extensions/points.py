"""The extension points of an engine: the methods that its step extensions override, grouped by who calls them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from sglang_plug.contracts.extension.base import StepExtension
from sglang_plug.contracts.extension.execution import ExecutionPhase
from sglang_plug.contracts.extension.memory_phases import (
    CachePhase,
    MemoryPhase,
    ProfilingPhase,
    StatePhase,
    StoredStatePhase,
    TensorStorePhase,
)
from sglang_plug.contracts.extension.preemption import PreemptionPhase
from sglang_plug.contracts.extension.queueing import QueuePhase
from sglang_plug.contracts.extension.request_phases import (
    AdmissionPhase,
    MetricsPhase,
    OutputPhase,
    PlanningPhase,
    ServicePhase,
)
from sglang_plug.contracts.extension.sampling_phases import HoldPhase, SamplingPhase, WatchdogPhase
from sglang_plug.contracts.extension.step_budget import StepBudgetPhase
from sglang_plug.contracts.extension.step_phases import (
    ForwardPhase,
    GraphPhase,
    InputPhase,
    ModelPhase,
    RankPhase,
    StaticInputPhase,
)

from .collected import CollectedExtensions
from .names import ExtensionNames
from .request_points import RequestPoints
from .server_points import CachePoints, ServicePoints, StartPoints, WatchdogPoints
from .step_points import DEFAULT_PREEMPTION, DEFAULT_STEP_BUDGET, ForwardPoints, PlanningPoints, SamplingPoints


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionPoints:
    """All extension points of one engine. Each part of the engine gets the group that it calls."""

    requests: RequestPoints = RequestPoints()
    planning: PlanningPoints = PlanningPoints()
    forward: ForwardPoints = ForwardPoints()
    sampling: SamplingPoints = SamplingPoints()
    cache: CachePoints = CachePoints()
    start: StartPoints = StartPoints()
    service: ServicePoints = ServicePoints()
    watchdog: WatchdogPoints = WatchdogPoints()


def extension_points(
    extensions: Mapping[str, StepExtension],
    refusals: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    vocab_size: int = sys.maxsize,
) -> ExtensionPoints:
    """Collect the methods that ``extensions``, by name and in their order, override.

    ``refusals``: request fields that are refused, with the message; ``labels``: the extensions as errors name them, by
    name; ``vocab_size``: the number of token ids that extensions may force. Raises ``ConfigError`` if two extensions
    have a phase that only one may have.
    """
    labels = labels or {name: f"step-extension {name!r}" for name in extensions}
    names = ExtensionNames(tuple((extension, labels[name]) for name, extension in extensions.items()))
    collected = CollectedExtensions(extensions, names)
    return ExtensionPoints(
        requests=_request_points(collected, refusals or {}, names, vocab_size),
        planning=PlanningPoints(
            order=collected.methods(PlanningPhase.order),
            plan=collected.methods(PlanningPhase.plan),
            waits_for=collected.methods(PlanningPhase.waits_for),
            step_budget=collected.only_object(
                StepBudgetPhase, DEFAULT_STEP_BUDGET, "choose how many prompt tokens a step has"
            ),
            preemption=collected.only_object(PreemptionPhase, DEFAULT_PREEMPTION, "preempt running sequences"),
            names=names,
        ),
        forward=_forward_points(collected),
        sampling=SamplingPoints(
            allowed=collected.methods(SamplingPhase.allowed),
            sampled=collected.methods(SamplingPhase.sampled),
            names=names,
            vocab_size=vocab_size,
        ),
        cache=_cache_points(collected),
        start=_start_points(collected, names),
        service=_service_points(collected, names),
        watchdog=WatchdogPoints(
            check_step=collected.methods(WatchdogPhase.check_step),
            blocking_request=collected.methods(WatchdogPhase.blocking_request),
        ),
    )


def _request_points(
    collected: CollectedExtensions, refusals: Mapping[str, str], names: ExtensionNames, vocab_size: int
) -> RequestPoints:
    return RequestPoints(
        constrains=collected.methods(SamplingPhase.constrains),
        admission=collected.objects(AdmissionPhase),
        layout=collected.methods(AdmissionPhase.layout),
        cache_key=collected.methods(AdmissionPhase.cache_key),
        hold_phases=collected.objects(HoldPhase),
        queue_phases=collected.objects(QueuePhase),
        verified=collected.methods(OutputPhase.verified),
        output=collected.methods(OutputPhase.output),
        finished=collected.methods(AdmissionPhase.finished),
        vocab_size=vocab_size,
        refusals=refusals,
        names=names,
    )


def _forward_points(collected: CollectedExtensions) -> ForwardPoints:
    return ForwardPoints(
        kernels=collected.methods(ModelPhase.kernels),
        inspect=collected.methods(ModelPhase.inspect),
        install=collected.methods(ModelPhase.install),
        context=collected.methods(ModelPhase.context),
        prepare=collected.methods(InputPhase.prepare),
        before_forward=collected.methods(ForwardPhase.before_forward),
        after_forward=collected.methods(ForwardPhase.after_forward),
        graphs=collected.objects(GraphPhase),
        static_inputs=collected.objects(StaticInputPhase),
        execution_phases=collected.objects_by_name(ExecutionPhase),
        rank_step=collected.methods_by_name(RankPhase.rank_step),
        prepare_step=collected.methods_by_name(RankPhase.prepare_step),
        handle_command=collected.methods_by_name(RankPhase.handle_command),
    )


def _cache_points(collected: CollectedExtensions) -> CachePoints:
    return CachePoints(
        states=collected.objects(StatePhase),
        prefix_cached=collected.methods(CachePhase.prefix_cached),
        prefix_restored=collected.methods(CachePhase.prefix_restored),
        evicted=collected.methods(CachePhase.evicted),
        restore_prefix=collected.methods(CachePhase.restore_prefix),
        reset=collected.methods(CachePhase.reset),
        forget_stored=collected.methods(CachePhase.forget_stored),
        check=collected.methods(CachePhase.check),
    )


def _start_points(collected: CollectedExtensions, names: ExtensionNames) -> StartPoints:
    return StartPoints(
        memory=collected.objects(MemoryPhase),
        largest_request=collected.methods(ProfilingPhase.largest_request),
        max_draft_rows=max((planning.max_draft_rows for planning in collected.objects(PlanningPhase)), default=0),
        stored_states=collected.objects(StoredStatePhase),
        use_prefixes=collected.methods(CachePhase.use_prefixes),
        tensor_store=collected.methods(TensorStorePhase.tensor_store),
        use_tensor_store=collected.methods(TensorStorePhase.use_tensor_store),
        start=collected.methods(ServicePhase.start),
        names=names,
    )


def _service_points(collected: CollectedExtensions, names: ExtensionNames) -> ServicePoints:
    return ServicePoints(
        step_done=collected.methods(ServicePhase.step_done),
        idle_timeout=collected.methods(ServicePhase.idle_timeout),
        between_steps=collected.methods(ServicePhase.between_steps),
        counters=collected.methods(MetricsPhase.counters),
        gauges=collected.methods(MetricsPhase.gauges),
        controls=collected.methods(ServicePhase.controls),
        info=collected.methods(ServicePhase.info),
        close=collected.methods(StepExtension.close),
        names=names,
    )
