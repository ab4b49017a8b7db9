"""The part of a prefix that is loaded: the blocks that are present, up to a state to continue from."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from sglang_plug import KVBlock, SequenceView, StateShape, StoredStatePhase
from sglang_plug_backends.kv_stores.host import HostStore
from sglang_plug_backends.kv_stores.settings import HostSettings
from sglang_plug_backends.kv_tiers.block_layout import BlockLayout
from sglang_plug_backends.kv_tiers.loading.prefix_source import LoadedPrefix, MissingPrefix, PrefixSource
from sglang_plug_backends.kv_tiers.loading.step_quota import StepQuota
from sglang_plug_backends.kv_tiers.state_layout import StateLayout
from sglang_plug_backends.kv_tiers.storage.tier import Tier
from sglang_plug_backends.kv_tiers.storage.tiers import Tiers

CPU = torch.device("cpu")
LAYOUT = BlockLayout(tokens=4, layers=2, key_bytes=8, value_bytes=8)
BLOCKS = [bytes([number]) * 32 for number in range(8)]


class Owner(StoredStatePhase):
    """A phase with states of two tensors, of which the second one is not aligned."""

    def stored_tensors(self, multiple: int) -> Sequence[StateShape]:
        return [StateShape(shape=(3,), dtype=torch.uint8), StateShape(shape=(2, 2), dtype=torch.float32)]

    def copy_state(self, sequence: SequenceView, length: int) -> Sequence[Tensor]:
        return [torch.full((3,), length, dtype=torch.uint8), torch.full((2, 2), float(length))]


STATES = StateLayout.of([StoredStatePhase(), Owner()], LAYOUT.tokens)
KEYS = [(end, STATES.key(BLOCKS[end - 1])) for end in range(1, 9)]


@pytest.fixture
def fast() -> HostStore:
    return HostStore(HostSettings())


@pytest.fixture
def slow() -> HostStore:
    return HostStore(HostSettings())


@pytest.fixture
def tiers(fast: HostStore, slow: HostStore) -> Tiers:
    return Tiers([Tier("fast", fast), Tier("slow", slow)])


def put(store: HostStore, blocks: Sequence[bytes], states: Sequence[int] = ()) -> None:
    store.store([KVBlock(key, memoryview(bytes(LAYOUT.bytes))) for key in blocks])
    for end in states:
        store.store([KVBlock(KEYS[end - 1][1], STATES.encode(Owner().copy_state(None, end)))])  # type: ignore[arg-type]


def load(tiers: Tiers, missing: MissingPrefix, layout: BlockLayout = LAYOUT) -> LoadedPrefix | None:
    source = PrefixSource(tiers, layout, STATES, CPU)
    located = source.locate(missing)
    if located is None:
        return None
    loaded = source.load(located, time.monotonic() + 60)
    assert loaded.bytes <= source.size(located) <= source.max_bytes(missing)
    return loaded


def test_the_deepest_state_that_blocks_reach_is_loaded(tiers: Tiers, fast: HostStore, slow: HostStore) -> None:
    put(slow, BLOCKS[:6], [2, 5, 8])
    put(fast, BLOCKS[:3])
    loaded = load(tiers, MissingPrefix(BLOCKS[1:], 1, KEYS, 0))
    assert loaded is not None
    assert (loaded.end, loaded.tiers, loaded.state_tier) == (5, ["fast", "fast", "slow", "slow"], "slow")
    assert [tensor.tolist() for tensor in loaded.state] == [[5, 5, 5], [[5.0, 5.0], [5.0, 5.0]]]
    assert [block.key for block in loaded.lower] == [*BLOCKS[3:5], KEYS[4][1]]


def test_blocks_without_any_state_are_not_loaded(tiers: Tiers, slow: HostStore) -> None:
    put(slow, BLOCKS, [1, 2])
    assert load(tiers, MissingPrefix(BLOCKS[2:], 2, KEYS[2:], 2)) is None


def test_a_state_is_loaded_behind_blocks_that_are_in_the_pool(tiers: Tiers, slow: HostStore) -> None:
    put(slow, [], [3])
    loaded = load(tiers, MissingPrefix(BLOCKS[4:], 4, KEYS, 0))
    assert loaded is not None and (loaded.end, loaded.tiers, loaded.bytes) == (3, [], STATES.size)


class Damaging(HostStore):
    """A host store that loses a block when blocks are loaded."""

    lost = b""

    def load(self, keys: Sequence[bytes], deadline: float):  # type: ignore[no-untyped-def]
        self.delete([self.lost])
        return super().load(keys, deadline)


@pytest.mark.parametrize(("lost", "end"), [(KEYS[6][1], 4), (BLOCKS[5], 4), (BLOCKS[2], 0), (KEYS[3][1], 7)])
def test_a_shallower_state_is_used_if_something_cannot_be_loaded(lost: bytes, end: int) -> None:
    store = Damaging(HostSettings())
    put(store, BLOCKS, [4, 7])
    store.lost = lost
    loaded = load(Tiers([Tier("damaging", store)]), MissingPrefix(BLOCKS, 0, KEYS, 0))
    assert loaded is not None and (loaded.end, len(loaded.tiers)) == (end, end)


def test_a_model_without_attention_needs_no_blocks(tiers: Tiers, slow: HostStore) -> None:
    put(slow, [], [4, 7])
    loaded = load(tiers, MissingPrefix([], 0, KEYS, 0), BlockLayout(4, 0, 0, 0))
    assert loaded is not None and (loaded.end, loaded.tiers, loaded.rows) == (7, [], ())


def test_states_of_another_format_have_other_keys() -> None:
    class Wider(Owner):
        def stored_tensors(self, multiple: int) -> Sequence[StateShape]:
            return [StateShape(shape=(3,), dtype=torch.uint8), StateShape(shape=(4,), dtype=torch.float32)]

    assert StateLayout.of([Wider()], 4).key(BLOCKS[0]) != STATES.key(BLOCKS[0])
    assert STATES.key(BLOCKS[0]) not in BLOCKS


@pytest.mark.parametrize("present", [0, 1, 3, 7, 8])
def test_during_steps_blocks_are_loaded_in_parts(tiers: Tiers, fast: HostStore, slow: HostStore, present: int) -> None:
    put(fast, BLOCKS[:2])
    put(slow, BLOCKS[:present])
    missing = MissingPrefix(BLOCKS, 0)
    expected = load(tiers, missing)
    quota = StepQuota(3 * LAYOUT.bytes)
    source = PrefixSource(tiers, LAYOUT, STATES, CPU, quota)
    located = source.locate(missing)
    assert expected is not None and located is not None
    loaded = source.load(located, time.monotonic() + 60)
    assert (loaded.end, loaded.tiers, loaded.bytes) == (expected.end, expected.tiers, expected.bytes)
    assert [rows.tolist() for rows in loaded.rows] == [rows.tolist() for rows in expected.rows]


def test_the_part_behind_a_lost_block_is_not_loaded() -> None:
    store = Damaging(HostSettings())
    put(store, BLOCKS)
    store.lost = BLOCKS[4]
    source = PrefixSource(Tiers([Tier("damaging", store)]), LAYOUT, STATES, CPU, StepQuota(3 * LAYOUT.bytes))
    located = source.locate(MissingPrefix(BLOCKS, 0))
    assert located is not None
    assert source.load(located, time.monotonic() + 60).end == 4
