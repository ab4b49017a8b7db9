"""The states that a model keeps of each sequence besides keys and values, known before its weights are loaded."""

from __future__ import annotations

from sglang_plug.contracts.model.checkpoint import Checkpoint
from sglang_plug.contracts.model.model import Model
from sglang_plug.contracts.model.recurrent_state import StateShape
from sglang_plug.plugins.attribution import attributed, check_contract
from sglang_plug.plugins.registry import Component


def state_shapes(model: Component, model_class: type[Model], checkpoint: Checkpoint) -> tuple[StateShape, ...]:
    """Return the shapes of the states; none for most models."""
    with attributed(model, "to tell the shapes of its recurrent states"):
        shapes = tuple(model_class.state_shapes(checkpoint.config))
    for shape in shapes:
        check_contract(model, shape, StateShape)
    return shapes
