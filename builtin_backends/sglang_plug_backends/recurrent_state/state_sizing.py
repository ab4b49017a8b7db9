"""The pool of recurrent states: how many of them fit in memory, and its allocation."""

from __future__ import annotations

from sglang_plug import ConfigError, ExtensionContext, StatePool
from sglang_plug_backends.byte_sizes import gigabytes

STATE_SHARE = 0.5
"""Largest fraction of the room for keys, values and states that states take unless their number is given."""
REMEMBERED = 256
"""Number of states kept for cached prefixes in addition to those of running sequences."""


def bytes_per_state(context: ExtensionContext) -> int:
    """Return the bytes of the states of one sequence, in all layers."""
    return sum(shape.bytes(context.dtype) for shape in context.states)


def state_rows(context: ExtensionContext, room: float) -> int:
    """Return the rows of the pool of states, as configured or as fit into ``room`` bytes.

    Raises ``ConfigError`` if there is no room for them.
    """
    requested, each = context.config.cache.max_states, bytes_per_state(context)
    if requested is not None and requested < 1:
        raise ConfigError(f"--max-states must be at least 1, got {requested}")
    fitting = int(room * (STATE_SHARE if requested is None else 1.0) // each) - StatePool.RESERVED
    if fitting < (1 if requested is None else requested):
        states = "recurrent states" if requested is None else f"{requested} recurrent states"
        raise ConfigError(
            f"no memory for {states}: {gigabytes(max(room, 0))} are left for them and the KV pool, and the state of "
            f"one sequence takes {gigabytes(each)}; set --max-states, lower --max-total-tokens or serve a smaller model"
        )
    return StatePool.RESERVED + (min(fitting, 2 * context.max_running + REMEMBERED) if requested is None else requested)


def make_states(context: ExtensionContext, rows: int) -> StatePool:
    """Allocate a pool of ``rows``."""
    return StatePool(context.states, rows=rows, dtype=context.dtype, device=context.device)
