"""The step extension that records the experts of every model that has routers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sglang_plug import (
    ExtensionContext,
    Kernels,
    Model,
    ModelPhase,
    ServicePhase,
    StepExtension,
)

from .recorder import ExpertRecorder


class RecordedExperts(StepExtension, ModelPhase, ServicePhase):
    """Records the routers of the served model; a record continues with the routers of new weights.

    Steps are not replayed while routers are recorded.
    """

    def __init__(self) -> None:
        self.recorder = ExpertRecorder()

    def install(self, model: Model, kernels: Kernels) -> None:
        """Record the routers of ``model`` from now on."""
        self.recorder.use(model)

    def controls(self) -> Mapping[str, Callable[..., Any]]:
        """Start, stop and dump the record, if the model has routers."""
        return self.recorder.controls()


def build(context: ExtensionContext) -> RecordedExperts:
    """Return the extension."""
    return RecordedExperts()
