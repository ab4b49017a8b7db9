"""Planning of a step's sequences."""

from __future__ import annotations

import torch

from sglang_plug import ForwardBatch, KVPool
from sglang_plug_backends.torch_native.plan import plan

MIN_SHARED = 128


def batch(tables: list[list[int]], query_lens: list[int]) -> ForwardBatch:
    longest = max(map(len, tables))
    total = sum(query_lens)
    pool = KVPool(layers=1, slots=8, kv_heads=1, dim=2, value_dim=2, dtype=torch.float32, device=torch.device("cpu"))
    return ForwardBatch(
        input_ids=torch.zeros(total, dtype=torch.int64),
        positions=torch.zeros(total, dtype=torch.int64),
        slots=torch.zeros(total, dtype=torch.int64),
        tables=torch.tensor([row + [0] * (longest - len(row)) for row in tables]),
        query_lens=query_lens,
        kv_lens=[len(row) for row in tables],
        kv=pool,
    )


def test_decodes_and_prompts_are_told_apart() -> None:
    result = plan(batch([[5, 6, 7], [1, 2], [3, 4, 8, 9]], [1, 2, 3]), min_shared=MIN_SHARED)
    assert result.decode is not None and result.decode.rows is not None
    assert result.decode.rows.tolist() == [0]
    assert [(extend.start, extend.count) for extend in result.extends] == [(1, 2), (3, 3)]
    assert result.extends[0].prefix is None
    assert result.extends[1].prefix is not None and result.extends[1].prefix.tolist() == [3]


def test_a_long_common_prefix_is_cut_off_and_at_least_one_token_left() -> None:
    shared = list(range(1, MIN_SHARED + 20))
    result = plan(batch([[*shared, 900], [*shared, 901, 902]], [1, 1]), min_shared=MIN_SHARED).decode
    assert result is not None and result.shared is not None
    assert result.shared.tolist() == shared
    assert result.lengths.tolist() == [1, 2]
    same = plan(batch([shared, shared], [1, 1]), min_shared=MIN_SHARED).decode
    assert same is not None and same.shared is not None
    assert len(same.shared) == len(shared) - 1


def test_short_or_differing_prefixes_are_left_alone() -> None:
    short = list(range(1, 20))
    for tables in ([[*short, 50], [*short, 51]], [list(range(1, 400)), list(range(500, 899))]):
        result = plan(batch(tables, [1, 1]), min_shared=MIN_SHARED).decode
        assert result is not None and result.shared is None


def test_equal_lengths_need_no_mask() -> None:
    result = plan(batch([[1, 2, 3], [4, 5, 6]], [1, 1]), min_shared=MIN_SHARED).decode
    assert result is not None
    assert result.mask(None, torch.float32) is None
    assert result.mask(3, torch.float32) is None
    windowed = result.mask(2, torch.float32)
    assert windowed is not None
    assert torch.isneginf(windowed[:, 0, 0]).tolist() == [[True, False, False]] * 2


def test_slots_in_a_row_are_not_gathered() -> None:
    row = plan(batch([[4, 5, 6, 7]], [1]), min_shared=MIN_SHARED).decode
    assert row is not None and row.first == 4
    pool = torch.arange(8.0)[:, None, None]
    assert row.gather(pool).flatten().tolist() == [4.0, 5.0, 6.0, 7.0]
    scattered = plan(batch([[4, 6, 5, 7]], [1]), min_shared=MIN_SHARED).decode
    assert scattered is not None and scattered.first is None
    assert scattered.gather(pool).flatten().tolist() == [4.0, 6.0, 5.0, 7.0]
