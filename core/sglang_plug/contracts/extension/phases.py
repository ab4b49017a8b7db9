"""All phases of step extensions."""

from __future__ import annotations

from .execution import ExecutionPhase
from .memory_phases import (
    CachePhase,
    MemoryPhase,
    ProfilingPhase,
    StatePhase,
    StoredStatePhase,
    TensorStorePhase,
)
from .preemption import PreemptionPhase
from .queueing import QueuePhase
from .request_phases import AdmissionPhase, MetricsPhase, OutputPhase, PlanningPhase, ServicePhase
from .sampling_phases import HoldPhase, SamplingPhase, WatchdogPhase
from .step_budget import StepBudgetPhase
from .step_phases import ForwardPhase, GraphPhase, InputPhase, ModelPhase, RankPhase, StaticInputPhase

PHASES: tuple[type, ...] = (
    AdmissionPhase,
    HoldPhase,
    QueuePhase,
    PlanningPhase,
    StepBudgetPhase,
    PreemptionPhase,
    ModelPhase,
    InputPhase,
    ForwardPhase,
    StaticInputPhase,
    GraphPhase,
    RankPhase,
    ExecutionPhase,
    SamplingPhase,
    OutputPhase,
    ServicePhase,
    MetricsPhase,
    WatchdogPhase,
    StatePhase,
    StoredStatePhase,
    MemoryPhase,
    CachePhase,
    TensorStorePhase,
    ProfilingPhase,
)
