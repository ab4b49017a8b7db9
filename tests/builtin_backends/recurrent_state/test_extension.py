"""The extension of recurrent states: its memory, and what it reports."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from sglang_plug import StateShape
from sglang_plug.testing import check_step_extension
from sglang_plug_backends.recurrent_state.extension import RecurrentState, build


def context(max_states: int | None = 4, states: tuple[StateShape, ...] = (StateShape(shape=(3, 2)),)) -> Any:
    config = SimpleNamespace(cache=SimpleNamespace(max_states=max_states, page_size=1))
    return SimpleNamespace(config=config, states=states, dtype=torch.float32, device=torch.device("cpu"), max_running=6)


def test_the_contract_of_step_extensions_is_kept() -> None:
    for max_states in (None, 1, 4):
        check_step_extension(RecurrentState(context(max_states)))


def test_the_pool_is_replaced_and_freed() -> None:
    extension = RecurrentState(context())
    extension.allocate(extension.memory_request(None))
    assert extension.most_running() == 0
    request = extension.memory_request(1e9)
    extension.allocate(request)
    assert extension.most_running() == 4 and request.bytes == extension.pool.rows * 24
    extension.allocate(None)
    assert extension.most_running() is None and extension.info() == {"states": None}


def test_a_model_without_states_has_no_pool() -> None:
    ((name, extension),) = {"states": build(context(3, states=()))}.items()
    assert extension.info() == {name: None}  # type: ignore[attr-defined]
