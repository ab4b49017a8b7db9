"""Tests of the database: status changes, counts of results, limits, pages."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sglang_plug import (
    BATCH_TRANSITIONS,
    OPEN_BATCH_STATUSES,
    BatchRecord,
    BatchStatus,
    FileInUse,
    FileRecord,
    LineResult,
    StorageBroken,
    StorageFull,
    StoreContext,
    TokenCounts,
    UnknownId,
)
from sglang_plug_api.stores.sqlite.database import Database
from sglang_plug_api.stores.sqlite.schema import TOKENS, VERSION

Make = Callable[..., Any]
STATUSES: tuple[BatchStatus, ...] = get_args(BatchStatus)
NOW = 1000


def result(line: int, succeeded: bool = True) -> LineResult:
    usage = TokenCounts(input_tokens=line, cached_tokens=1, output_tokens=2 * line, reasoning_tokens=3)
    return LineResult(line=line, succeeded=succeeded, payload=f"result {line}".encode(), usage=usage)


def all_results(store: Database, id: str) -> list[tuple[int, bytes]]:
    return sorted(store.results(id, True, after=0, limit=1000) + store.results(id, False, after=0, limit=1000))


class Batches(RuleBasedStateMachine):
    """Random calls on one batch, compared with a model in plain Python; the database is sometimes reopened."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = self.open()
        self.store.add_file(FileRecord(id="input", purpose="batch", filename="x", bytes=1, created_at=NOW))
        batch = BatchRecord(
            id="b",
            model="m",
            endpoint="/v1/completions",
            input_file_id="input",
            completion_window="24h",
            created_at=NOW,
            expires_at=NOW + 1,
        )
        self.store.add_batch(batch)
        self.status: BatchStatus = "validating"
        self.stamps: dict[str, int] = {}
        self.results: dict[int, bool] = {}
        self.counts = (0, 0)
        self.usage = TokenCounts()
        self.now = NOW

    def open(self) -> Database:
        return Database(Path(self.folder.name) / "s.sqlite3", StoreContext(max_files=10, max_bytes=10**6))

    def moved(self, to: BatchStatus) -> None:
        self.status = to
        self.stamps[f"{to}_at"] = self.now

    @rule(to=st.sampled_from(STATUSES))
    def move(self, to: BatchStatus) -> None:
        self.now += 1
        before = self.status
        batch = self.store.move("b", to, self.now)
        if to in BATCH_TRANSITIONS[before]:
            self.moved(to)
        assert batch.status == self.status

    @rule(lines=st.lists(st.tuples(st.integers(1, 20), st.booleans()), max_size=6))
    def add_results(self, lines: list[tuple[int, bool]]) -> None:
        self.store.add_results("b", [result(line, succeeded) for line, succeeded in lines])
        if self.status in ("in_progress", "cancelling"):
            for line, succeeded in lines:
                self.results.setdefault(line, succeeded)
            self.counts = (sum(self.results.values()), len(self.results) - sum(self.results.values()))
            input, count = sum(self.results), len(self.results)
            self.usage = TokenCounts(
                input_tokens=input, cached_tokens=count, output_tokens=2 * input, reasoning_tokens=3 * count
            )

    @precondition(lambda self: self.status in OPEN_BATCH_STATUSES)
    @rule(to=st.sampled_from(["completed", "cancelled", "expired", "failed"]))
    def finish(self, to: BatchStatus) -> None:
        self.now += 1
        output = FileRecord(id="out", purpose="batch_output", filename="x", bytes=5, created_at=NOW)
        batch = self.store.finish("b", to, self.now, output=output, error=None)
        if to in BATCH_TRANSITIONS[self.status]:
            assert batch is not None and batch.output_file_id == "out"
            self.moved(to)
            self.results = {}
        else:
            assert batch is None
            assert "out" not in self.store.file_ids()

    @rule()
    def open_again(self) -> None:
        self.store.close()
        self.store = self.open()

    @rule()
    def remove_input(self) -> None:
        if self.status in OPEN_BATCH_STATUSES:
            with pytest.raises(FileInUse):
                self.store.remove_file("input")

    @invariant()
    def agrees(self) -> None:
        batch = self.store.batch("b")
        assert batch.status == self.status
        assert {name: time for name in self.stamps if (time := getattr(batch, name))} == self.stamps
        assert (batch.completed, batch.failed, batch.usage) == (*self.counts, self.usage)
        assert self.store.done_lines("b") == set(self.results)

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()


Batches.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestBatches = Batches.TestCase


def test_a_finished_status_leads_nowhere_and_an_open_one_to_an_end() -> None:
    ends = set(STATUSES) - OPEN_BATCH_STATUSES
    assert ends == {"completed", "failed", "expired", "cancelled"}
    for status in OPEN_BATCH_STATUSES:
        reached, known = {status}, 0
        while len(reached) > known:
            known = len(reached)
            reached |= {to for source in reached for to in BATCH_TRANSITIONS[source]}
        assert reached & ends


def test_a_line_counts_once(store: Database, batch_record: Make) -> None:
    store.add_batch(batch_record())
    store.move("batch_1", "in_progress", NOW, total=3)
    store.add_results("batch_1", [result(1), result(2, False), result(1, False)])
    store.add_results("batch_1", [result(2), result(3)])
    batch = store.batch("batch_1")
    assert (batch.total, batch.completed, batch.failed) == (3, 2, 1)
    assert all_results(store, "batch_1") == [(1, b"result 1"), (2, b"result 2"), (3, b"result 3")]
    assert store.results("batch_1", True, after=1, limit=1) == [(3, b"result 3")]


def test_results_of_a_batch_that_is_over_are_dropped(store: Database, batch_record: Make) -> None:
    store.add_batch(batch_record())
    store.move("batch_1", "in_progress", NOW)
    store.move("batch_1", "cancelling", NOW)
    store.add_results("batch_1", [result(1)])
    store.finish("batch_1", "cancelled", NOW, output=None, error=None)
    store.add_results("batch_1", [result(2)])
    assert store.batch("batch_1").completed == 1
    assert store.done_lines("batch_1") == set()


def test_cancel_wins_over_a_validator_that_is_late(store: Database, batch_record: Make) -> None:
    store.add_batch(batch_record())
    store.move("batch_1", "cancelling", NOW)
    assert store.move("batch_1", "in_progress", NOW + 1, total=5).status == "cancelling"
    batch = store.batch("batch_1")
    assert (batch.total, batch.in_progress_at, batch.cancelling_at) == (0, None, NOW)


def test_an_input_can_go_once_its_batches_are_over(store: Database, batch_record: Make) -> None:
    store.add_batch(batch_record())
    with pytest.raises(FileInUse, match="batch_1"):
        store.remove_file("input")
    store.move("batch_1", "cancelling", NOW)
    store.finish("batch_1", "cancelled", NOW, output=None, error=None)
    store.remove_file("input")
    with pytest.raises(UnknownId):
        store.file("input")


def test_a_batch_needs_its_input(store: Database, batch_record: Make) -> None:
    with pytest.raises(UnknownId, match="other"):
        store.add_batch(batch_record(input_file_id="other"))
    with pytest.raises(UnknownId):
        store.batch("batch_1")


def test_files_are_limited_in_number(open_store: Callable[..., Database], file_record: Make) -> None:
    store = open_store(max_files=2)
    store.add_file(file_record("a"))
    store.add_file(file_record("b"))
    with pytest.raises(StorageFull, match="--max-files"):
        store.add_file(file_record("c"))
    store.remove_file("a")
    store.add_file(file_record("c"))
    assert store.file_ids() == {"b", "c"}


def test_bytes_are_limited_and_results_count(
    open_store: Callable[..., Database], file_record: Make, batch_record: Make
) -> None:
    store = open_store(max_bytes=100)
    store.add_file(file_record("input", bytes=60))
    store.add_batch(batch_record())
    store.move("batch_1", "in_progress", NOW)
    store.add_results("batch_1", [LineResult(line=1, succeeded=True, payload=b"x" * 19)])
    assert store.used_bytes() == 80
    with pytest.raises(StorageFull, match="--max-storage-bytes"):
        store.add_file(file_record("other", bytes=21))
    with pytest.raises(StorageFull):
        store.add_results("batch_1", [LineResult(line=2, succeeded=True, payload=b"x" * 20)])
    batch = store.batch("batch_1")
    assert batch.completed == 1
    output = file_record("out", bytes=20)
    store.move("batch_1", "finalizing", NOW)
    store.finish("batch_1", "completed", NOW, output=output, error=None)
    assert store.used_bytes() == 80


def test_pages_go_through_everything_once(store: Database, batch_record: Make) -> None:
    for number in range(7):
        store.add_batch(batch_record(f"batch_{number}"))
    ids: list[str] = []
    after = None
    while True:
        page = store.batches(limit=3, after=after)
        ids += [item.id for item in page.items]
        if not page.has_more:
            break
        after = ids[-1]
    assert ids == [f"batch_{number}" for number in reversed(range(7))]
    assert [item.id for item in store.batches(limit=2, after="batch_3", ascending=True).items] == ["batch_4", "batch_5"]
    with pytest.raises(UnknownId):
        store.batches(limit=1, after="batch_7")


def test_files_by_purpose(store: Database, file_record: Make) -> None:
    store.add_file(file_record("out", purpose="batch_output"))
    assert [item.id for item in store.files(limit=9, after=None, ascending=True).items] == ["input", "out"]
    assert [item.id for item in store.files(limit=9, after=None, ascending=True, purpose="batch").items] == ["input"]


def test_only_batches_of_the_own_model_are_to_be_run(store: Database, batch_record: Make) -> None:
    store.add_batch(batch_record("mine"))
    store.add_batch(batch_record("theirs", model="other"))
    store.add_batch(batch_record("abandoned", model="other", expires_at=10))
    store.add_batch(batch_record("over"))
    store.finish("over", "failed", NOW, output=None, error=None)
    assert [batch.id for batch in store.open_batches("demo", 11)] == ["mine", "abandoned"]


def test_two_processes_see_each_other(open_store: Callable[..., Database], store: Database, batch_record: Make) -> None:
    other = open_store()
    store.add_batch(batch_record(metadata={"key": "välue"}))
    assert other.batch("batch_1").metadata == {"key": "välue"}
    other.move("batch_1", "cancelling", NOW)
    assert store.batch("batch_1").status == "cancelling"


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_database_of_an_earlier_version_is_taken_over(
    file_record: Make, batch_record: Make, tmp_path: Path, version: int
) -> None:
    path = tmp_path / "old.sqlite3"
    store = Database(path, StoreContext(max_files=10, max_bytes=1000))
    store.add_file(file_record("input"))
    store.add_batch(batch_record())
    store.close()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("DROP TABLE claims")
        for table in ("files", "batches") if version < 3 else ():
            database.execute(f"ALTER TABLE {table} DROP COLUMN owner")
        database.execute("DELETE FROM database" if version == 3 else "DROP TABLE database")
        for name in TOKENS if version == 1 else ():
            database.execute(f"ALTER TABLE batches DROP COLUMN {name}")
        database.execute(f"PRAGMA user_version = {version}")
    for _ in range(2):
        store = Database(path, StoreContext(max_files=10, max_bytes=1000))
        assert store.batch("batch_1") == batch_record()
        assert store.file("input") == file_record("input")
        assert store.created_at() == 0
        store.close()


def test_a_database_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "new.sqlite3"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(f"PRAGMA user_version = {VERSION + 1}")
    with pytest.raises(StorageBroken, match="another version"):
        Database(path, StoreContext(max_files=10, max_bytes=1000))
