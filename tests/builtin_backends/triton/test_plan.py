from __future__ import annotations

import torch

from sglang_plug import ForwardBatch, KVPool
from sglang_plug.testing.model.attention_inputs import make_batch
from sglang_plug_backends.triton.plan import columns_of, decode_columns, decode_rows, pack, prefill_plan, tile

CPU = torch.device("cpu")


def batch(lengths: list[tuple[int, int]], *, pool: bool = True) -> ForwardBatch:
    kv = KVPool(layers=1, slots=1, kv_heads=1, dim=1, value_dim=1, dtype=torch.float32, device=CPU) if pool else None
    return make_batch([[0] * total for _, total in lengths], [new for new, _ in lengths], kv=kv, device=CPU)


def test_packed_columns_come_back_and_are_aligned() -> None:
    columns = [[1, 2, 3, 4, 5], [], [6], [7, 8, 9, 10]]
    views = columns_of(pack(columns), columns)
    assert [view.tolist() for view in views] == columns
    assert all(view.storage_offset() * view.element_size() % 16 == 0 for view in views)


def test_rows_of_one_new_token_are_decoded_unless_there_is_no_pool() -> None:
    lengths = [(1, 9), (4, 4), (1, 1)]
    assert decode_rows(batch(lengths)) == [0, 2]
    assert decode_columns(batch(lengths), [0, 2]) == [[0, 5], [0, 2], [9, 1]]
    assert decode_rows(batch([(1, 1), (3, 3)], pool=False)) == []


def test_every_query_is_in_one_block_and_the_longest_contexts_come_first() -> None:
    plan = prefill_plan(batch([(40, 40), (1, 7), (70, 100)]), [0, 2], 32, CPU)
    blocks = list(zip(plan.block_sequences.tolist(), plan.block_starts.tolist(), strict=True))
    assert plan.query_block == 32
    assert blocks == [(2, 64), (2, 32), (0, 32), (2, 0), (0, 0)]
    assert plan.query_starts.tolist() == [0, 40, 41]
    assert plan.query_lengths.tolist() == [40, 1, 70]
    assert plan.lengths.tolist() == [40, 7, 100]


def test_blocks_are_no_larger_than_the_longest_prompt_needs() -> None:
    assert prefill_plan(batch([(17, 17), (5, 50)]), [0, 1], 128, CPU).query_block == 32
    assert [tile(length) for length in (1, 16, 17, 80, 128)] == [16, 16, 32, 128, 128]
