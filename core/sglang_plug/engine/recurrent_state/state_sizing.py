"""The recurrent states of a model: their shapes, and how many of them fit in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_plug.config import ConfigError
from sglang_plug.contracts.model.checkpoint import Checkpoint
from sglang_plug.contracts.model.model import Model
from sglang_plug.contracts.model.recurrent_state import RESERVED, StatePool, StateShape
from sglang_plug.engine.memory.budget import gigabytes
from sglang_plug.plugins.attribution import attributed, check_contract
from sglang_plug.plugins.registry import Component

if TYPE_CHECKING:
    from sglang_plug.engine.startup.resolve import Resolved

STATE_SHARE = 0.5
"""Largest fraction of the room for keys, values and states that states take unless their number is given."""
REMEMBERED = 256
"""Number of states kept for cached prefixes beside those of running sequences."""


def state_shapes(model: Component, model_class: type[Model], checkpoint: Checkpoint) -> tuple[StateShape, ...]:
    """Return the shapes of the states that the model keeps per sequence besides keys and values."""
    with attributed(model, "to tell the shapes of its recurrent states"):
        shapes = tuple(model_class.state_shapes(checkpoint.config))
    for shape in shapes:
        check_contract(model, shape, StateShape)
    return shapes


def bytes_per_state(resolved: Resolved) -> int:
    """Return the bytes of the states of one sequence, in all layers."""
    return sum(shape.bytes(resolved.dtype) for shape in resolved.states)


def state_rows(resolved: Resolved, room: float) -> int:
    """Return the rows of the pool of states, as configured or as fit into ``room`` bytes; 0 if the model has none.

    Raises ``ConfigError`` if there is no room for them.
    """
    if not resolved.states:
        return 0
    asked, each = resolved.config.cache.max_states, bytes_per_state(resolved)
    if asked is not None and asked < 1:
        raise ConfigError(f"--max-states must be at least 1, got {asked}")
    fitting = int(room * (STATE_SHARE if asked is None else 1.0) // each) - RESERVED
    if fitting < (1 if asked is None else asked):
        wanted = "recurrent states" if asked is None else f"{asked} recurrent states"
        raise ConfigError(
            f"no memory for {wanted}: {gigabytes(max(room, 0))} are left for them and the KV pool, and the state of "
            f"one sequence takes {gigabytes(each)}; set --max-states, lower --max-total-tokens or serve a smaller model"
        )
    return RESERVED + (min(fitting, 2 * resolved.max_running + REMEMBERED) if asked is None else asked)


def make_states(resolved: Resolved, rows: int) -> StatePool:
    """Allocate a pool of ``rows``."""
    return StatePool(resolved.states, rows=rows, dtype=resolved.dtype, device=resolved.device)
