"""The number of recurrent states that are allocated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_plug import ConfigError, StatePool, StateShape
from sglang_plug_backends.recurrent_state.state_sizing import REMEMBERED, bytes_per_state, make_states, state_rows

SHAPES = (StateShape(shape=(3, 8)), StateShape(shape=(2, 4), dtype=torch.float32))
EACH = 3 * 8 * 2 + 2 * 4 * 4
"""Bytes of one sequence's states in a bfloat16 model."""


def resolved(max_states: int | None = None, states: tuple[StateShape, ...] = SHAPES, running: int = 16) -> Any:
    config = SimpleNamespace(cache=SimpleNamespace(max_states=max_states))
    return SimpleNamespace(
        config=config, states=states, dtype=torch.bfloat16, device=torch.device("cpu"), max_running=running
    )


def test_a_state_in_the_models_dtype_and_one_in_its_own() -> None:
    assert bytes_per_state(resolved()) == EACH
    pool = make_states(resolved(), 5)
    assert sum(state[0].numel() * state.element_size() for state in pool.states) == EACH


def test_as_many_as_are_of_use() -> None:
    assert state_rows(resolved(), 1e9) == StatePool.RESERVED + 2 * 16 + REMEMBERED


def test_half_of_the_room_at_most() -> None:
    assert state_rows(resolved(), 40 * EACH) == 20


def test_as_many_as_were_asked_for_in_all_of_the_room() -> None:
    assert state_rows(resolved(38), 40 * EACH) == 40
    with pytest.raises(ConfigError, match="no memory for 39 recurrent states"):
        state_rows(resolved(39), 40 * EACH)


def test_no_room_for_one() -> None:
    with pytest.raises(ConfigError, match="no memory for recurrent states: .* lower --max-total-tokens"):
        state_rows(resolved(), 5 * EACH)


def test_none_at_all_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="--max-states must be at least 1, got 0"):
        state_rows(resolved(0), 1e9)
