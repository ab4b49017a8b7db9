"""Plugins for tests of adapters."""

from __future__ import annotations

SCALING = """
from __future__ import annotations

import json

import torch

from sglang_plug import AdapterSpec, Adapter, ConfigError, LayerAdapter, hookimpl


@hookimpl
def register_adapters():
    yield AdapterSpec(name="scaling", target=f"{__name__}:read", summary="multiplies inputs or outputs")


class Scaled(LayerAdapter):
    def __init__(self, inputs, outputs):
        self.inputs, self.outputs = inputs, outputs

    def before(self, x):
        return x * self.inputs

    def after(self, x, y):
        y.mul_(self.outputs)


def read(request, settings):
    file = request.path / "scaling.json"
    if not file.is_file():
        return None
    layers = {}
    for name, sides in json.loads(file.read_text()).items():
        if name == "broken":
            raise ZeroDivisionError("in the format")
        if name == "full":
            raise torch.OutOfMemoryError("CUDA out of memory")
        if name == "unknown":
            return Adapter(layers={"model.nowhere": Scaled(1, 1)})
        if name == "wrong":
            return Adapter(layers={request.layers[0].name: "nothing"})
        layer, columns = request.target_modules()[name]
        old = layers.get(layer.name)
        outputs = torch.ones(layer.size_out) if old is None else old.outputs
        outputs[columns] = torch.tensor(sides["out"]) if "out" in sides else 1
        layers[layer.name] = Scaled(torch.tensor(sides.get("in", 1.0)), outputs)
    return Adapter(layers=layers)
"""
"""A plugin with an adapter format (IA3) that multiplies each output, or each input, by a factor."""

WATCHED_STEPS = """
from __future__ import annotations

from sglang_plug import ForwardPhase, ServicePhase, StepExtension, StepExtensionSpec, hookimpl


@hookimpl
def register_step_extensions():
    yield StepExtensionSpec(name="watched-steps", target=f"{__name__}:build")


class WatchedSteps(StepExtension, ForwardPhase, ServicePhase):
    def __init__(self):
        self.steps = []

    def before_forward(self, chunks):
        self.steps.append({chunk.sequence.request.adapter for chunk in chunks} - {None})

    def info(self):
        return {"adapters_of_steps": self.steps}


def build(context):
    return WatchedSteps()
"""
"""A plugin that records the adapters of each step."""
