"""Keeps the batches of this server's model running, from start to end of the process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from functools import partial

from fastapi import FastAPI

from sglang_plug.engine.client import EngineError
from sglang_plug_api.text import TextEngine

from .admission import Admission
from .call import call, endpoint_of
from .job import Job, Turns
from .models import BatchRecord
from .storage import RunnerLock, Storage

logger = logging.getLogger(__name__)

ACTIVE_BATCHES = 4
"""Batches whose lines run together; others wait, oldest first."""
SWEEP = 1.0
"""Seconds between two looks at the table, which other processes may have changed."""
ABANDONED = 3600
"""Seconds past its end after which a batch is ended by a server of another model."""


class Runner:
    """Runs what the table says is to be run. The table is the only truth: this holds nothing that must survive."""

    def __init__(self, engine: TextEngine, storage: Storage) -> None:
        self._engine, self._storage = engine, storage
        self._lock = RunnerLock(storage.folder, engine.model_name)
        self._jobs: dict[str, Job] = {}
        self._tasks = set[asyncio.Task[None]]()
        self._stuck = set[str]()
        self._news = asyncio.Event()
        self._turns = Turns(checks=1, lines=ACTIVE_BATCHES)
        self._complaint = ""

    def wake(self) -> None:
        """The table has changed."""
        self._news.set()

    @contextlib.asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Runs batches while the application lives. What is unfinished then is left as it is."""
        info = self._engine.info
        admission = Admission(
            self._engine,
            most=self._storage.config.batch_concurrency,
            places=info["max_running_requests"],
            closed=lambda: app.state.gate.closing,
        )
        supervisor = asyncio.create_task(self._supervise(app, admission))
        try:
            yield
        finally:
            for task in (supervisor, *self._tasks):
                task.cancel()
            await asyncio.gather(supervisor, *self._tasks, return_exceptions=True)
            await self._storage.close()
            self._lock.release()

    async def _supervise(self, app: FastAPI, admission: Admission) -> None:
        while True:
            self._news.clear()
            try:
                await self._sweep(app, admission)
                self._complaint = ""
            except Exception as error:
                if str(error) != self._complaint:  # once, not every second
                    self._complaint = str(error)
                    logger.exception("the batches could not be looked at")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SWEEP if self._storage.exists else None):
                    await self._news.wait()

    async def _sweep(self, app: FastAPI, admission: Admission) -> None:
        """Start what is to be started and stop what is to be stopped."""
        if not self._storage.exists or not self._lock.acquire() or self._engine.client.failure is not None:
            return
        now = int(time.time())
        model = self._engine.model_name
        batches = await self._storage.call(lambda store: store.open_batches(model, now - ABANDONED))
        for batch in batches:
            if job := self._jobs.get(batch.id):
                if batch.status == "cancelling" or now >= batch.expires_at:
                    job.stop()
            elif batch.id not in self._stuck and (_needs_no_route(batch, now) or endpoint_of(app, batch.endpoint)):
                self._start(batch, app, admission)

    def _start(self, batch: BatchRecord, app: FastAPI, admission: Admission) -> None:
        job = Job(
            batch,
            self._storage,
            partial(call, app),
            admission,
            self._turns,
            self._engine.config.max_request_bytes,
        )
        self._jobs[batch.id] = job
        task = asyncio.create_task(self._run(batch.id, job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, id: str, job: Job) -> None:
        try:
            await job.run()
        except EngineError as error:
            logger.error("batch %s stays unfinished: %s", id, error)
        except Exception:
            self._stuck.add(id)
            logger.exception("batch %s stays unfinished until the server is started again", id)
        finally:
            del self._jobs[id]


def _needs_no_route(batch: BatchRecord, now: int) -> bool:
    return batch.status in ("finalizing", "cancelling") or now >= batch.expires_at
