"""The recurrent states of a model: what it keeps of a sequence, and how many of them are in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_plug.attribution import attributed, check_contract
from sglang_plug.config import ConfigError
from sglang_plug.model import Model
from sglang_plug.plugins import Component
from sglang_plug.policy import Checkpoint
from sglang_plug.recurrent import RESERVED, StatePool, StateShape

from .memory import gigabytes

if TYPE_CHECKING:
    from .resolve import Resolved

STATE_SHARE = 0.5
"""Most of the room for keys, values and states that states take unless their number is given."""
REMEMBERED = 256
"""States of prefixes that are worth room beside those of running sequences."""


def state_shapes(model: Component, model_class: type[Model], checkpoint: Checkpoint) -> tuple[StateShape, ...]:
    """What the model keeps of each sequence besides keys and values."""
    with attributed(model, "to tell the shapes of its recurrent states"):
        found = tuple(model_class.state_shapes(checkpoint.config))
    for one in found:
        check_contract(model, one, StateShape)
    return found


def bytes_per_state(resolved: Resolved) -> int:
    """What all layers keep of one sequence."""
    return sum(one.bytes(resolved.dtype) for one in resolved.states)


def state_rows(resolved: Resolved, room: float) -> int:
    """Rows of the pool of states, as many as were asked for or fit into ``room`` bytes; 0 if the model has none.

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
    """A pool of ``rows``."""
    return StatePool(resolved.states, rows=rows, dtype=resolved.dtype, device=resolved.device)
