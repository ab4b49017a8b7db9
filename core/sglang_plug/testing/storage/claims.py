"""Checks of claims: lines belong to one worker at a time, also when workers are killed."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE

from sglang_plug.contracts.storage.records import WHOLE_BATCH
from sglang_plug.contracts.storage.store import Store

from . import claimer
from .opened import NOW, Servers, add_batch, file_record, result, running_batch

LONG = 3600.0
LINES = range(1, 201)
POLL = 0.05


async def check_claims(servers: Servers) -> None:
    """A claim ends with its time, with the result, with ``release`` and with the batch, and not before."""
    first, second = servers.open(), servers.open()
    id = await running_batch(first)
    await _claims(first, id, "a", {1, 2, 3, 4}, {1, 2, 3, 4}, "free lines")
    await _claims(second, id, "b", {3, 4, 5}, {5}, "lines that another worker holds, and one that is free,")
    await _claims(first, id, "a", {1, 5}, {1}, "a line that the worker holds itself, and one of another worker,")
    await second.add_results(id, [result(1), result(5)], "b")
    assert await first.done_lines(id) == {5}, "a result of a line that another worker holds is stored"
    await _claims(first, id, "a", {5}, set(), "a line that has a result")
    await _claims(second, id, "b", {6}, {6}, "a free line")
    await first.release(id, "a")
    await second.renew(id, "a", LONG)
    await _claims(first, id, "c", {6}, set(), "a line of one worker after another one released its lines")
    await _claims(second, id, "b", {1, 2}, {1, 2}, "lines that were released")
    await _claims(first, id, "c", {4}, {4}, "a line that was released")
    await second.renew(id, "b", 0)
    await _claims(second, id, "b", {4}, set(), "a line of one worker after the claims of another one are over")
    await _claims(first, id, "a", {2, 3}, {2, 3}, "lines whose claim is over")
    await second.add_results(id, [result(1)], "b")
    assert 1 in await first.done_lines(id), "a result is dropped although its claim went to nobody else"
    await second.renew(id, "b", LONG)
    await _claims(second, id, "b", {2}, set(), "a line that another worker took over")
    await _check_whole(first, second, id)
    assert await first.claim("unknown", [1], "a", LONG) == set(), "lines of an unknown batch are claimed"


async def _check_whole(first: Store, second: Store, id: str) -> None:
    await _claims(second, id, "b", {WHOLE_BATCH, 10}, {WHOLE_BATCH, 10}, "the whole batch")
    await _claims(first, id, "a", {WHOLE_BATCH, 11}, set(), "a batch that another worker holds as a whole")
    await first.add_results(id, [result(2)], "a")
    assert 2 not in await second.done_lines(id), "a result is added while another worker holds the whole batch"
    assert await first.finish(id, "failed", NOW, output=None, error=None, worker="a") is None, (
        "finish() ends a batch that another worker holds as a whole"
    )
    assert await second.finish(id, "failed", NOW, output=None, error=None, worker="b") is not None, (
        "finish() of the worker that holds the whole batch does not end it"
    )
    await _claims(first, id, "a", {WHOLE_BATCH, 12}, set(), "a batch that has ended")


async def _claims(store: Store, id: str, worker: str, lines: set[int], expected: set[int], case: str) -> None:
    claimed = await store.claim(id, sorted(lines), worker, LONG)
    assert claimed == expected, f"claim() of {case} returns {sorted(claimed)}, not {sorted(expected)}"


async def check_two_workers(servers: Servers) -> None:
    """Workers that claim and finish the same lines at the same time have each line once."""
    stores = [servers.open() for _ in range(3)]
    id = await running_batch(stores[0])
    owners: dict[int, str] = {}

    async def work(store: Store, worker: str) -> None:
        for start in range(0, len(LINES), 20):
            for line in await store.claim(id, LINES[start : start + 20], worker, LONG):
                assert line not in owners, f"line {line} was claimed by two workers"
                owners[line] = worker
            held = [line for line in LINES[start : start + 20] if owners.get(line) == worker]
            await store.add_results(id, [result(line) for line in held], worker)

    try:
        async with asyncio.TaskGroup() as group:
            for number, store in enumerate(stores):
                for part in "ab":
                    group.create_task(work(store, f"{number}{part}"))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    batch, done = await stores[0].batch(id), await stores[1].done_lines(id)
    assert done == set(LINES), f"{len(LINES) - len(done)} of {len(LINES)} lines were lost"
    assert batch.completed == len(LINES), f"{len(LINES)} lines were counted as {batch.completed}"


async def check_finish(servers: Servers) -> None:
    """One of several servers that end a batch does so."""
    stores = [servers.open() for _ in range(2)]
    for number in range(5):
        id = f"batch-{number}"
        await add_batch(stores[0], id)
        await stores[0].move(id, "in_progress", NOW)
        await stores[0].move(id, "finalizing", NOW)
        outputs = [file_record(f"{id}-{index}", purpose="batch_output") for index in range(4)]
        ended = await asyncio.gather(
            *(
                stores[index % 2].finish(id, "completed", NOW, output=output, error=None)
                for index, output in enumerate(outputs)
            )
        )
        winners = [output for output, batch in zip(outputs, ended, strict=True) if batch is not None]
        assert len(winners) == 1, f"finish() ended a batch {len(winners)} times"
        assert (await stores[1].batch(id)).output_file_id == winners[0].id, "a batch has the files of another finish()"
    files = (await stores[0].files(limit=100, after=None, ascending=True, purpose="batch_output")).items
    assert len(files) == 5, f"finish() registered {len(files)} files for 5 batches"


async def check_kills(servers: Servers) -> None:
    """A process that is killed loses the lines that it held, later, and none of the results that it had stored."""
    store = servers.open()
    id = await running_batch(store)
    target = f"{servers.make.__module__}:{servers.make.__qualname__}"
    # As a script: its package imports torch, which takes seconds.
    command = [sys.executable, "-P", claimer.__file__, target, str(servers.folder), id]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, env=environment)
    assert process.stdout is not None
    reported = set[int]()
    try:
        while len(reported) < 40 and (text := await process.stdout.readline()):
            reported.add(int(text))
    finally:
        process.kill()
        await process.communicate()
    assert len(reported) >= 40, f"{target} cannot be opened by another process"
    done = await store.done_lines(id)
    assert reported <= done, f"{len(reported - done)} results that were stored are lost when the process is killed"
    assert (await store.batch(id)).completed == len(done), "lines are counted wrongly after a process was killed"
    remaining = set(LINES) - done
    claimed = await store.claim(id, sorted(remaining), "survivor", LONG)
    while claimed < remaining:  # the claims of the process that was killed end
        await asyncio.sleep(POLL)
        claimed |= await store.claim(id, sorted(remaining - claimed), "survivor", LONG)
    await store.add_results(id, [result(line) for line in remaining], "survivor")
    assert (await store.batch(id)).completed == len(LINES), "lines that a killed process held cannot be finished"
