"""Tests of the job that runs one batch, with a route whose answers the test decides."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, cast

import pytest

from sglang_plug import (
    WHOLE_BATCH,
    BatchRecord,
    ContentWriter,
    EngineError,
    LineResult,
    StorageBroken,
    Store,
    StoreWrapper,
)
from sglang_plug_api.batches.admission import BatchAdmission
from sglang_plug_api.batches.batch_job import BatchJob, ConcurrencyLimits, InputLimits, JobTiming
from sglang_plug_api.batches.route_call import EngineBusy, RouteAnswer
from sglang_plug_api.stores.sqlite.store import SQLiteStore

Make = Callable[..., Any]
AddInput = Callable[[list[Any]], Awaitable[None]]
NOW = 1000


class Route:
    """A route that answers lines, and counts how often each ran and how many ran at once."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.at_once = self.max_at_once = 0
        self.hold = asyncio.Event()
        self.hold.set()
        self.behaviour: Callable[[str], RouteAnswer] = lambda prompt: RouteAnswer(200, "id", {"text": prompt})

    async def __call__(self, path: str, body: bytes) -> RouteAnswer:
        assert path == "/v1/completions"
        prompt = json.loads(body)["prompt"]
        self.at_once += 1
        self.max_at_once = max(self.max_at_once, self.at_once)
        try:
            await self.hold.wait()
            await asyncio.sleep(0)
            answer = self.behaviour(prompt)
            self.ran.append(prompt)
            return answer
        finally:
            self.at_once -= 1


class Slots:
    """Admission of a fixed number of lines."""

    def __init__(self, count: int = 4) -> None:
        self._free = asyncio.Semaphore(count)
        self.held = self.entered = 0
        self.last: int | None = None

    async def enter(self, width: int) -> None:
        if self.entered == self.last:
            raise ZeroDivisionError
        await self._free.acquire()
        self.held += 1
        self.entered += 1

    def leave(self, width: int) -> None:
        self._free.release()
        self.held -= 1


class Bench:
    """A batch in a storage, and jobs that run it."""

    def __init__(self, storage: SQLiteStore, id: str) -> None:
        self.storage, self.id = storage, id
        self.route, self.slots = Route(), Slots()

    async def batch(self) -> BatchRecord:
        return await self.storage.call(lambda store: store.batch(self.id))

    async def job(
        self,
        *,
        worker: str = "worker",
        turns: int = 1,
        store: Store | None = None,
        now: Callable[[], float] = time.time,
        **timing: float,
    ) -> BatchJob:
        return BatchJob(
            await self.batch(),
            store or self.storage,
            self.route,
            cast(BatchAdmission, self.slots),
            ConcurrencyLimits(checks=turns, lines=turns),
            InputLimits(lines=1000, line_bytes=10_000),
            worker,
            JobTiming(**timing),
            now=now,
        )

    async def run(self, **options: Any) -> BatchRecord:
        await (await self.job(**options)).run()
        return await self.batch()

    async def move(self, to: Any) -> None:
        await self.storage.call(lambda store: store.move(self.id, to, NOW))

    async def until_done(self, count: int) -> None:
        while len(await self.storage.call(lambda store: store.done_lines(self.id))) < count:
            await asyncio.sleep(0.001)

    def lines(self, id: str | None) -> list[dict[str, Any]]:
        return [] if id is None else [json.loads(line) for line in self.storage.path(id).read_text().splitlines()]

    def ids(self, id: str | None) -> list[str]:
        return [line["custom_id"] for line in self.lines(id)]


StartBench = Callable[..., Awaitable[Bench]]


@pytest.fixture
def start(storage: SQLiteStore, add_input: AddInput, request_line: Make, batch_record: Make) -> StartBench:
    """Return a function that stores a batch of so many lines, or of these lines: ``await start(lines)``."""

    async def make(lines: int | list[Any], **changes: Any) -> Bench:
        await add_input([request_line(number) for number in range(lines)] if isinstance(lines, int) else lines)
        await storage.call(lambda store: store.add_batch(batch_record(**changes)))
        return Bench(storage, "batch_1")

    return make


def names(numbers: range) -> list[str]:
    return [f"line-{number}" for number in numbers]


async def test_every_line_is_answered_once_and_in_order(start: StartBench) -> None:
    bench = await start(200)
    batch = await bench.run()
    assert (batch.status, batch.total, batch.completed, batch.failed) == ("completed", 200, 200, 0)
    assert batch.in_progress_at and batch.finalizing_at and batch.completed_at and batch.error_file_id is None
    assert bench.ids(batch.output_file_id) == names(range(200))
    first = bench.lines(batch.output_file_id)[0]
    assert first.pop("id").startswith("batch_req_")
    assert first == {
        "custom_id": "line-0",
        "response": {"status_code": 200, "request_id": "id", "body": {"text": "prompt 0"}},
        "error": None,
    }
    assert len(bench.route.ran) == len(set(bench.route.ran)) == 200
    assert bench.route.max_at_once == 4


async def test_refused_lines_go_to_the_error_file(start: StartBench) -> None:
    bench = await start(10)
    bench.route.behaviour = lambda prompt: RouteAnswer(
        400 if prompt in ("prompt 2", "prompt 5") else 200, "id", {"a": 1}
    )
    batch = await bench.run()
    assert (batch.status, batch.completed, batch.failed) == ("completed", 8, 2)
    assert bench.ids(batch.error_file_id) == ["line-2", "line-5"]
    assert bench.lines(batch.error_file_id)[0]["response"] == {"status_code": 400, "request_id": "id", "body": {"a": 1}}
    assert set(bench.ids(batch.output_file_id)) == set(names(range(10))) - {"line-2", "line-5"}


async def test_a_file_with_faults_runs_nothing(start: StartBench, request_line: Make) -> None:
    bench = await start([request_line(1), request_line(1)])
    batch = await bench.run()
    assert (batch.status, batch.in_progress_at, batch.output_file_id) == ("failed", None, None)
    assert batch.failed_at
    assert [(error["code"], error["line"]) for error in batch.errors] == [("duplicate_custom_id", 2)]
    assert bench.route.ran == []


async def test_cancel_keeps_what_is_done_and_ends_what_runs(start: StartBench) -> None:
    bench = await start(100)
    bench.route.behaviour = lambda prompt: bench.route.hold.clear() or RouteAnswer(200, "id", {})  # type: ignore[func-returns-value]
    job = await bench.job()
    running = asyncio.create_task(job.run())
    await bench.until_done(1)
    await bench.move("cancelling")
    job.stop()
    await running
    batch = await bench.batch()
    assert batch.status == "cancelled" and batch.cancelled_at and batch.cancelling_at
    assert 1 <= batch.completed < 100
    assert len(bench.ids(batch.output_file_id)) == batch.completed
    assert bench.route.at_once == bench.slots.held == 0


async def test_cancel_of_a_batch_that_nobody_runs(start: StartBench) -> None:
    bench = await start(5)
    await bench.move("cancelling")
    batch = await bench.run()
    assert (batch.status, batch.output_file_id, batch.completed) == ("cancelled", None, 0)
    assert bench.route.ran == []


async def test_stop_does_not_wait_for_a_turn(start: StartBench) -> None:
    bench = await start(5)
    job = await bench.job(turns=0)
    running = asyncio.create_task(job.run())
    await asyncio.sleep(0)
    await bench.move("cancelling")
    job.stop()
    await running
    assert (await bench.batch()).status == "cancelled"


class CancelledWhileRead(StoreWrapper):
    """A store in which the batch is cancelled when its input is read."""

    async def read_content(self, id: str) -> AsyncGenerator[bytes, None]:
        await self.store.move("batch_1", "cancelling", NOW)
        async with contextlib.aclosing(self.store.read_content(id)) as parts:
            async for part in parts:
                yield part


async def test_cancel_while_the_file_is_being_checked(start: StartBench) -> None:
    bench = await start(5)
    batch = await bench.run(store=CancelledWhileRead(bench.storage))
    assert (batch.status, batch.in_progress_at, batch.total) == ("cancelled", None, 0)
    assert bench.route.ran == []


class CancelledWhileWritten(StoreWrapper):
    """A store in which the batch is cancelled when a result file is created."""

    async def create_content(self, id: str) -> ContentWriter:
        await self.store.move("batch_1", "cancelling", NOW)
        return await self.store.create_content(id)


async def test_cancel_while_the_files_are_written(start: StartBench) -> None:
    bench = await start(5)
    batch = await bench.run(store=CancelledWhileWritten(bench.storage))
    assert (batch.status, batch.completed) == ("cancelled", 5)
    assert bench.ids(batch.output_file_id) == names(range(5))
    known = await bench.storage.call(lambda store: store.file_ids())
    assert {path.name for path in bench.storage.path("x").parent.iterdir()} == known


@pytest.mark.parametrize("rounds", [1, 2, 5])
async def test_a_job_left_at_any_moment_goes_on_later(start: StartBench, rounds: int) -> None:
    bench = await start(120)
    for number in range(rounds):
        running = asyncio.create_task((await bench.job()).run())
        await bench.until_done(10 * (number + 1))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert (await bench.batch()).status == "in_progress"
        assert bench.slots.held == 0
    batch = await bench.run()
    assert (batch.status, batch.completed, batch.failed) == ("completed", 120, 0)
    assert bench.ids(batch.output_file_id) == names(range(120))
    assert len(bench.route.ran) <= 120 + 4 * rounds  # only what was under way ran twice


@pytest.mark.parametrize("status", ["in_progress", "finalizing"])
async def test_a_job_left_before_its_files_were_written(start: StartBench, status: str) -> None:
    bench = await start(3)
    await bench.move("in_progress")
    await bench.move(status)
    batch = await bench.run()
    assert batch.status == "completed"
    assert len(bench.route.ran) == (3 if status == "in_progress" else 0)


async def test_lines_that_never_began_free_their_running_slots(start: StartBench) -> None:
    bench = await start(5)
    bench.slots.last = 3
    assert (await bench.run()).status == "failed"
    assert (bench.slots.entered, bench.slots.held) == (3, 0)
    assert bench.route.ran == []


async def test_a_dead_engine_is_no_answer(start: StartBench) -> None:
    bench = await start(20)

    def die(prompt: str) -> RouteAnswer:
        if len(bench.route.ran) >= 7:
            raise EngineError("gone")
        return RouteAnswer(200, "id", {})

    bench.route.behaviour = die
    with pytest.raises(EngineError):
        await bench.run()
    batch = await bench.batch()
    assert (batch.status, batch.failed) == ("in_progress", 0)
    bench.route.behaviour = lambda prompt: RouteAnswer(200, "id", {})
    batch = await bench.run()
    assert (batch.status, batch.completed) == ("completed", 20)


async def test_a_full_queue_is_no_answer(start: StartBench) -> None:
    bench = await start(5)
    refused = []

    def busy_at_first(prompt: str) -> RouteAnswer:
        if prompt not in refused:
            refused.append(prompt)
            raise EngineBusy
        return RouteAnswer(200, "id", {})

    bench.route.behaviour = busy_at_first
    batch = await bench.run(busy_pause=0.0)
    assert (batch.status, batch.completed, batch.failed) == ("completed", 5, 0)
    assert len(refused) == 5


async def test_a_line_leaves_the_admission_until_it_is_tried_again(start: StartBench) -> None:
    """A refused line frees its place until it is retried, so that lines of other batches can start."""
    bench = await start(3)
    bench.slots = Slots(1)
    attempts = Counter[str]()

    def busy_for_a_while(prompt: str) -> RouteAnswer:
        attempts[prompt] += 1
        if prompt == "prompt 0" and len(attempts) < 3:
            raise EngineBusy
        return RouteAnswer(200, "id", {})

    bench.route.behaviour = busy_for_a_while
    batch = await asyncio.wait_for(bench.run(busy_pause=0.0), 60)
    assert (batch.status, batch.completed, batch.failed) == ("completed", 3, 0)
    assert attempts["prompt 0"] > 1 and bench.slots.held == 0


async def test_a_line_that_is_cancelled_between_two_attempts_holds_nothing(start: StartBench) -> None:
    bench = await start(1)
    refused = asyncio.Event()

    def busy(prompt: str) -> RouteAnswer:
        refused.set()
        raise EngineBusy

    bench.route.behaviour = busy
    job = await bench.job(busy_pause=3600.0)
    running = asyncio.create_task(job.run())
    await refused.wait()
    await bench.move("cancelling")
    job.stop()
    await running
    assert (await bench.batch()).status == "cancelled"
    assert bench.slots.held == 0


async def test_a_batch_that_expires_tells_what_was_not_run(start: StartBench) -> None:
    bench = await start(10, expires_at=2**40)
    job = await bench.job()
    bench.route.behaviour = lambda prompt: bench.route.hold.clear() or RouteAnswer(200, "id", {})  # type: ignore[func-returns-value]
    running = asyncio.create_task(job.run())
    await bench.until_done(1)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    batch = await bench.run(now=lambda: 2.0**40)
    assert batch.status == "expired" and batch.expired_at
    done = bench.ids(batch.output_file_id)
    assert 1 <= len(done) == batch.completed < 10
    late = bench.lines(batch.error_file_id)
    assert {row["custom_id"] for row in late} == set(names(range(10))) - set(done)
    assert all(row["response"] is None and row["error"]["code"] == "batch_expired" for row in late)


async def test_a_batch_that_expires_while_it_waits(start: StartBench) -> None:
    bench = await start(3, expires_at=5)
    batch = await bench.run()
    assert (batch.status, batch.output_file_id, batch.in_progress_at) == ("expired", None, None)
    assert bench.route.ran == []


async def test_a_full_storage_ends_the_batch_with_what_it_has(start: StartBench) -> None:
    bench = await start(50)
    bench.route.behaviour = lambda prompt: RouteAnswer(200, "id", "x" * 9000)
    batch = await bench.run()
    assert batch.status == "failed"
    assert [error["code"] for error in batch.errors] == ["storage_full"]
    assert 0 < batch.completed < 50
    assert len(bench.ids(batch.output_file_id)) == batch.completed


async def test_what_nobody_expected_fails_the_batch_without_details(start: StartBench) -> None:
    bench = await start(5)

    def break_down(prompt: str) -> RouteAnswer:
        raise ZeroDivisionError("secret")

    bench.route.behaviour = break_down
    batch = await bench.run()
    assert batch.status == "failed"
    assert [error["code"] for error in batch.errors] == ["internal_error"]
    assert "secret" not in str(batch.errors)


async def test_a_storage_that_fails_leaves_the_batch_to_be_continued(start: StartBench) -> None:
    """If the store fails for a while, for example because the disk is full, the batch is continued later."""
    bench = await start(20)
    path = bench.storage.folder / "batches.sqlite3"

    def move_away(prompt: str) -> RouteAnswer:
        if prompt == "prompt 9":
            path.rename(path.with_name("elsewhere"))
        return RouteAnswer(200, "id", {})

    bench.route.behaviour = move_away
    with pytest.raises(StorageBroken):
        await (await bench.job()).run()
    path.with_name("elsewhere").rename(path)
    bench.route.behaviour = lambda prompt: RouteAnswer(200, "id", {})
    batch = await bench.run()
    assert (batch.status, batch.completed, batch.failed) == ("completed", 20, 0)
    assert bench.ids(batch.output_file_id) == names(range(20))


async def test_an_input_whose_content_is_missing_fails_the_batch(start: StartBench) -> None:
    bench = await start(5)
    bench.storage.path("input").unlink()
    batch = await bench.run()
    assert batch.status == "failed"
    assert [error["code"] for error in batch.errors] == ["input_file_missing"]


async def test_two_servers_share_the_lines(start: StartBench) -> None:
    bench = await start(200)
    await asyncio.gather(*[(await bench.job(worker=name)).run() for name in ("a", "b")])
    batch = await bench.run()  # a job may end early while the other one validates
    assert (batch.status, batch.completed, batch.failed) == ("completed", 200, 0)
    assert bench.ids(batch.output_file_id) == names(range(200))
    assert len(bench.route.ran) == len(set(bench.route.ran)) == 200


async def test_lines_of_a_server_that_died_are_run_by_another(start: StartBench) -> None:
    """Another server waits until the claims of the dead one expire, and then runs only the lines without a result."""
    bench = await start(100)
    await bench.move("in_progress")
    await bench.storage.add_results("batch_1", [LineResult(line=1, succeeded=True, payload=b"{}")], "dead")
    assert await bench.storage.claim("batch_1", range(1, 21), "dead", 3600) == set(range(2, 21))
    running = asyncio.create_task((await bench.job(others_pause=0.01)).run())
    await bench.until_done(81)
    assert (await bench.batch()).status == "in_progress"
    assert not {f"prompt {number}" for number in range(20)} & set(bench.route.ran)
    await bench.storage.renew("batch_1", "dead", 0)
    await running
    batch = await bench.batch()
    assert (batch.status, batch.completed) == ("completed", 100)
    assert sorted(bench.route.ran) == sorted(f"prompt {number}" for number in range(1, 100))


async def test_a_result_that_comes_after_another_server_took_the_line_is_dropped(start: StartBench) -> None:
    bench = await start(3)
    bench.route.hold.clear()
    running = asyncio.create_task((await bench.job(worker="slow", claim=0.03)).run())
    while bench.route.at_once < 3:
        await asyncio.sleep(0.001)
    claimed = set[int]()
    while not claimed:  # the job may renew its claim between the two calls
        await bench.storage.renew("batch_1", "slow", 0)
        claimed = set(await bench.storage.claim("batch_1", [2], "quick", 3600))
    assert claimed == {2}
    bench.route.hold.set()
    await bench.until_done(2)
    assert await bench.storage.done_lines("batch_1") == {1, 3}
    await bench.storage.add_results("batch_1", [LineResult(line=2, succeeded=False, payload=b"{}")], "quick")
    await running
    batch = await bench.batch()
    assert (batch.status, batch.completed, batch.failed) == ("completed", 2, 1)


async def test_a_server_does_not_end_a_batch_that_another_one_ends(start: StartBench) -> None:
    bench = await start(3)
    await bench.move("cancelling")
    assert await bench.storage.claim("batch_1", [WHOLE_BATCH], "other", 3600) == {WHOLE_BATCH}
    assert (await bench.run()).status == "cancelling"
    await bench.storage.release("batch_1", "other")
    assert (await bench.run()).status == "cancelled"


class ShowsRenewals(StoreWrapper):
    """A store that shows which claims were renewed."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.renewed = asyncio.Queue[tuple[str, str, float]]()

    async def renew(self, id: str, worker: str, seconds: float) -> None:
        await self.store.renew(id, worker, seconds)
        self.renewed.put_nowait((id, worker, seconds))


async def test_claims_are_renewed_while_lines_run(start: StartBench) -> None:
    bench = await start(3)
    store = ShowsRenewals(bench.storage)
    bench.route.hold.clear()
    running = asyncio.create_task((await bench.job(worker="slow", claim=0.03, store=store)).run())
    while bench.route.at_once < 3:
        await asyncio.sleep(0.001)
    for _ in range(3):
        assert await store.renewed.get() == ("batch_1", "slow", 0.03)
    bench.route.hold.set()
    await running
    assert (await bench.batch()).completed == 3


async def test_a_job_that_ends_frees_its_lines(start: StartBench) -> None:
    bench = await start(3)

    def die(prompt: str) -> RouteAnswer:
        raise EngineError("gone")

    bench.route.behaviour = die
    with pytest.raises(EngineError):
        await bench.run()
    assert await bench.storage.claim("batch_1", [1, 2, 3], "other", 3600) == {1, 2, 3}
