"""Checks of batches: changes of the status, results, pages."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import get_args

from sglang_plug.contracts.storage.errors import StorageFull, UnknownId
from sglang_plug.contracts.storage.records import (
    BATCH_TRANSITIONS,
    OPEN_BATCH_STATUSES,
    BatchRecord,
    BatchStatus,
    LineResult,
    TokenCounts,
)
from sglang_plug.contracts.storage.store import Store

from .opened import NOW, Servers, add_batch, batch_record, file_record, listed, refused, result, running_batch

METADATA: tuple[dict[str, str] | None, ...] = ({"key": "välue", "": ""}, {}, None)
STATUSES: tuple[BatchStatus, ...] = get_args(BatchStatus)
ROUNDS = 12


async def check_transitions(servers: Servers) -> None:
    """The status changes as ``BATCH_TRANSITIONS`` allows, whichever server asks for it."""
    stores, generator = (servers.open(), servers.open()), random.Random(5)
    for number in range(ROUNDS):
        id = f"batch-{number}"
        await add_batch(stores[0], id)
        status, now = STATUSES[0], NOW
        while status in OPEN_BATCH_STATUSES:
            store, to, now = generator.choice(stores), generator.choice(STATUSES), now + 1
            if to in BATCH_TRANSITIONS[status] and not BATCH_TRANSITIONS[to]:
                batch = await store.finish(id, to, now, output=None, error=None, errors=[{"code": "x"}])
                assert batch is not None, f"finish() does not lead from {status} to {to}"
                assert batch.errors == ({"code": "x"},), "finish() does not keep the errors"
            else:
                batch = await store.move(id, to, now)
            if to in BATCH_TRANSITIONS[status]:
                assert batch.status == to, f"move() from {status} to {to} leads to {batch.status}"
                assert getattr(batch, f"{to}_at") == now, f"{to}_at is not the time of the change"
                status = to
            else:
                assert batch.status == status, f"move() from {status} to {to}, which is not allowed, changes the batch"
        ended = await stores[0].batch(id)
        for to in STATUSES:
            for store in stores:
                assert await store.move(id, to, now + 1) == ended, "move() changes a batch that has ended"
                assert await store.finish(id, to, now + 1, output=None, error=None) is None, (
                    "finish() changes a batch that has ended"
                )


async def check_results(servers: Servers) -> None:
    """Each line counts once, and results are returned in order until the batch ends."""
    store, other = servers.open(), servers.open()
    batch = await add_batch(store)
    await store.add_results(batch.id, [result(1)])
    assert await store.done_lines(batch.id) == set(), "results of a batch that is validating are stored"
    await store.move(batch.id, "in_progress", NOW, total=3)
    await store.add_results(batch.id, [result(1), result(2, False), result(1, False)])
    await other.add_results(batch.id, [result(2), result(3)])
    current = await other.batch(batch.id)
    assert (current.total, current.completed, current.failed) == (3, 2, 1), "a line was counted more than once"
    assert await store.done_lines(batch.id) == {1, 2, 3}, "done_lines() are not all lines that have a result"
    usage = TokenCounts(input_tokens=6, cached_tokens=3, output_tokens=12, reasoning_tokens=9)
    assert current.usage == usage, f"the usage is {current.usage}, not the sum over all lines"
    for succeeded, expected in ((True, [(1, b"result 1"), (3, b"result 3")]), (False, [(2, b"result 2")])):
        rows = list(await store.results(batch.id, succeeded, after=0, limit=10))
        assert rows == expected, f"results() with succeeded={succeeded} are {rows}, not {expected}"
    assert list(await store.results(batch.id, True, after=1, limit=10)) == [(3, b"result 3")], "results() ignores after"
    assert len(await store.results(batch.id, True, after=0, limit=1)) == 1, "results() ignores limit"
    payload = bytes(range(256)) * 400
    await store.add_results(batch.id, [result(10), LineResult(line=9, succeeded=True, payload=payload)])
    rows = list(await other.results(batch.id, True, after=3, limit=2))
    assert [line for line, _ in rows] == [9, 10], "results() are not ordered by line"
    assert rows[0][1] == payload, "a payload was changed"
    await _check_end(store, other, batch)


async def _check_end(store: Store, other: Store, batch: BatchRecord) -> None:
    """The end of a batch registers its files, and removes its results, but not those of another batch."""
    neighbour = await add_batch(store, f"{batch.id}-2")  # its id begins with that of the other one
    await store.move(neighbour.id, "in_progress", NOW)
    await store.add_results(neighbour.id, [result(1)])
    before = await store.move(batch.id, "finalizing", NOW)
    await store.add_results(batch.id, [result(4)])
    output, error = (file_record(id, purpose="batch_output", owner="a") for id in ("output", "error"))
    finished = await other.finish(batch.id, "completed", NOW + 5, output=output, error=error)
    expected = replace(before, status="completed", completed_at=NOW + 5, output_file_id="output", error_file_id="error")
    assert finished == expected, f"finish() makes {finished} of {before}"
    for file in (output, error):
        assert await store.file(file.id) == file, f"finish() does not register the file {file.id} as it was given"
    await store.add_results(batch.id, [result(5)])
    assert await store.done_lines(batch.id) == set(), "a batch that has ended has results"
    assert await store.batch(batch.id) == finished, "results of a batch that has ended are counted"
    assert await other.done_lines(neighbour.id) == {1}, "finish() removes the results of another batch"
    failed = await store.move(neighbour.id, "failed", NOW, errors=[{"code": "ä"}])
    assert failed.errors == ({"code": "ä"},), "move() does not keep the errors"


async def check_batches(servers: Servers) -> None:
    """Batches are listed in pages to their owners, and to servers of their model."""
    store, other = servers.open(max_open_batches=9), servers.open()
    await refused(store.add_batch(batch_record("batch", input_file_id="unknown")), UnknownId, "a batch without input")
    for number in range(7):
        metadata = METADATA[number % len(METADATA)]
        added = await add_batch(store, f"batch-{number}", owner="ab"[number % 2], metadata=metadata)
        assert await other.batch(added.id) == added, f"a batch with the metadata {metadata} is not as it was added"
    for limit in (3, 7):  # the last page is full, or not
        ids = [batch.id for batch in await listed(other.batches, limit)]
        assert ids == [f"batch-{number}" for number in reversed(range(7))], f"the pages of batches are {ids}"
    page = await store.batches(limit=2, after="batch-2", ascending=True, owner="a")
    assert [batch.id for batch in page.items] == ["batch-4", "batch-6"], "batches of other owners are listed"
    await refused(store.batches(limit=1, after="batch-9"), UnknownId, "a page after an unknown batch")
    await refused(store.batch("batch-1", "a"), UnknownId, "batch() of another owner")
    await add_batch(store, "other", model="other")
    await add_batch(store, "abandoned", model="other", expires_at=10)
    await refused(add_batch(store, "tenth"), StorageFull, "add_batch() beyond max_open_batches")
    await store.move("batch-0", "cancelling", NOW)
    await store.finish("batch-1", "failed", NOW, output=None, error=None)
    ids = [batch.id for batch in await other.open_batches("demo", 11)]
    assert ids == [*(f"batch-{number}" for number in (0, 2, 3, 4, 5, 6)), "abandoned"], f"open_batches() returns {ids}"


async def check_kept_batches(servers: Servers) -> None:
    """Ended batches are listed up to a limit; open ones are always kept."""
    store = servers.open(max_kept_batches=3)
    opened = await running_batch(store)
    for number in range(6):
        await add_batch(store, f"batch-{number}")
        await store.finish(f"batch-{number}", "failed", NOW, output=None, error=None)
    ids = await _listed(store)
    assert opened in ids, "an open batch was deleted"
    assert "batch-5" in ids and "batch-0" not in ids, f"of ended batches, the latest must be kept; there are {ids}"


async def _listed(store: Store) -> list[str]:
    return [batch.id for batch in (await store.batches(limit=100, after=None)).items]
