"""The memory of the extension of recurrent states, and its metrics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sglang_plug import Request, StateShape
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.testing import check_step_extension
from sglang_plug_backends.recurrent_state.extension import RecurrentState, build
from sglang_plug_backends.recurrent_state.state_rows import held_state


def context(max_states: int | None = 4, states: tuple[StateShape, ...] = (StateShape(shape=(3, 2)),)) -> Any:
    config = SimpleNamespace(cache=SimpleNamespace(max_states=max_states, page_size=1))
    return SimpleNamespace(config=config, states=states, dtype=torch.float32, device=torch.device("cpu"), max_running=6)


def test_the_contract_of_step_extensions_is_kept() -> None:
    for max_states in (None, 1, 4):
        check_step_extension(RecurrentState(context(max_states)))


def test_the_pool_is_replaced_and_freed() -> None:
    extension = RecurrentState(context())
    extension.allocate(extension.memory_request(None))
    assert extension.max_running() == 0
    request = extension.memory_request(1e9)
    extension.allocate(request)
    assert extension.max_running() == 4 and request.bytes == extension.pool.rows * 24
    extension.allocate(None)
    assert extension.max_running() is None and extension.info() == {"states": None}


def test_a_model_without_states_has_no_pool() -> None:
    ((name, extension),) = {"states": build(context(3, states=()))}.items()
    assert extension.info() == {name: None}  # type: ignore[attr-defined]


def allocated(max_states: int) -> RecurrentState:
    extension = RecurrentState(context(max_states))
    extension.allocate(extension.memory_request(1e9))
    extension.stored_tensors(8)
    return extension


def sequence(first: int) -> Sequence:
    return Sequence.of(Request(id=str(first), tokens=(first, *range(8))), 100)


def test_a_state_from_the_host_waits_for_those_that_begin_with_the_one_in_its_row() -> None:
    extension, begins = allocated(2), sequence(1)
    old, new = torch.full((3, 2), 1.0), torch.full((3, 2), 2.0)
    assert extension.restore_state(begins, 8, [old])
    assert extension.acquire(begins, 8, 8), "its state is still to be copied"
    assert extension.restore_state(sequence(2), 8, [new]), "in the row of the first one"
    extension.before_forward([])
    held = held_state(begins)
    assert held is not None and torch.equal(extension.pool.states[0][held.row], old)
    assert torch.equal(extension.copy_state(sequence(2), 8)[0], new) and not extension.copy_state(begins, 8)


class CopiedRows(TorchDispatchMode):
    """Records the destination rows of copies."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = list[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name() == "aten::index_copy_":
            self.rows += args[2].tolist()
        return func(*args, **(kwargs or {}))


def test_a_sequence_that_is_released_before_its_first_step_changes_no_row() -> None:
    extension, begins, other = allocated(2), sequence(1), sequence(2)
    assert extension.restore_state(begins, 8, [torch.ones(3, 2)]) and extension.acquire(begins, 8, 8)
    extension.release(begins, False)
    assert extension.acquire(other, 0, 0), "in the row that was released"
    with CopiedRows() as copied:
        extension.before_forward([])
    held = held_state(other)
    assert held is not None and copied.rows == [held.row]
    extension.check()


def test_without_a_row_no_state_is_restored() -> None:
    extension, runs = allocated(1), sequence(1)
    assert extension.acquire(runs, 0, 0)
    assert not extension.restore_state(sequence(2), 8, [torch.zeros(3, 2)])
