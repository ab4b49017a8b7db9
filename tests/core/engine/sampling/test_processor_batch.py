"""Selection of the rows of a batch that use a logits processor."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_plug.engine.sampling.processor_batch import RowSelection

CPU = torch.device("cpu")


@given(st.integers(1, 8).flatmap(lambda count: st.tuples(st.just(count), st.permutations(range(count)))), st.data())
def test_rows_are_taken_and_put_back_where_they_were(batch: tuple[int, list[int]], data: st.DataObject) -> None:
    count, order = batch
    indices = order[: data.draw(st.integers(0, count))]
    selection = RowSelection(indices, count, CPU)
    before = torch.arange(count * 2).reshape(count, 2)
    values, into = before.clone(), before.clone()
    picked = selection.of(values)
    assert bool(selection) is bool(indices)
    assert picked.tolist() == before[indices].tolist()
    changed = -picked - 1
    after = selection.put(changed, into)
    for row in range(count):
        assert after[row].tolist() == (-before[row] - 1 if row in indices else before[row]).tolist()


@pytest.mark.parametrize(
    ("indices", "is_view"), [((0, 1, 2), True), ((1, 2), True), ((2, 1), False), ((0, 2), False), ((1,), True)]
)
def test_consecutive_rows_are_a_view_of_the_batch(indices: tuple[int, ...], is_view: bool) -> None:
    selection, values = RowSelection(indices, 3, CPU), torch.zeros(3, 2)
    selection.of(values).add_(1)
    assert selection.shares_memory is is_view
    assert values.sum().item() == (2 * len(indices) if is_view else 0)
