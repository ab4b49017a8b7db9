"""Runner of the batches of this server's model, from the start to the end of the process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
import uuid
from collections.abc import AsyncIterator, Callable
from functools import partial

from fastapi import FastAPI

from sglang_plug import BatchRecord, EngineError, StorageError
from sglang_plug_api.service.callers import Callers
from sglang_plug_api.stores.storage import Storage
from sglang_plug_api.text.text_engine import TextEngine

from .admission import BatchAdmission
from .batch_job import BatchJob, ConcurrencyLimits, InputLimits
from .route_call import call_route, find_endpoint

logger = logging.getLogger(__name__)

ACTIVE_BATCHES = 4
"""Batches whose lines run at the same time; others wait, oldest first."""
SWEEP_INTERVAL = 1.0
"""Seconds between two looks at the open batches, which other processes may have changed."""
STORAGE_PAUSE = 30.0
ABANDONED_AFTER = 3600
"""Seconds after its expiry when a batch may be ended by a server of another model."""


class BatchRunner:
    """Runs the open batches of the store. All state that must survive is in the store.

    Args:
        engine: the engine of this server.
        storage: has the batches and their files.
        storage_pause: seconds before a batch that stopped because the storage failed is tried again.
        now: returns the time in seconds since the epoch.
    """

    def __init__(
        self,
        engine: TextEngine,
        storage: Storage,
        *,
        storage_pause: float = STORAGE_PAUSE,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._storage = storage
        self._storage_pause = storage_pause
        self._now = now
        self._callers = Callers(engine.config)
        self._worker = str(uuid.uuid4())
        self._jobs: dict[str, BatchJob] = {}
        self._tasks = set[asyncio.Task[None]]()
        self._postponed = dict[str, float]()
        """Maps a batch to the time before which it is not tried again."""
        self._changed = asyncio.Event()
        self._limits = ConcurrencyLimits(checks=1, lines=ACTIVE_BATCHES)
        self._last_error = ""

    def wake(self) -> None:
        """Note that the open batches have changed."""
        self._changed.set()

    @contextlib.asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Run batches while the application lives; unfinished ones are left as they are."""
        info = self._engine.info
        admission = BatchAdmission(
            self._engine,
            limit=self._engine.config.storage.batch_concurrency,
            capacity=info["max_running_requests"],
            closed=lambda: app.state.gate.closing,
        )
        supervisor = asyncio.create_task(self._supervise(app, admission))
        try:
            yield
        finally:
            for task in (supervisor, *self._tasks):
                task.cancel()
            await asyncio.gather(supervisor, *self._tasks, return_exceptions=True)

    async def _supervise(self, app: FastAPI, admission: BatchAdmission) -> None:
        while True:
            self._changed.clear()
            try:
                await self._sweep(app, admission)
                self._last_error = ""
            except StorageError:
                pass  # it is in the log
            except Exception as error:
                if str(error) != self._last_error:  # log it once, not every second
                    self._last_error = str(error)
                    logger.exception("the batches could not be read")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_INTERVAL if self._storage.store.exists else None):
                    await self._changed.wait()

    async def _sweep(self, app: FastAPI, admission: BatchAdmission) -> None:
        """Start and stop jobs for the open batches."""
        store, model = self._storage.store, self._engine.model_name
        if not store.exists or self._engine.config.role == "prefill":  # its decode servers run them
            return
        # asked in any case, to detect a store that is damaged
        if not await self._storage.call(store.may_run_batches(model)) or self._engine.client.failure is not None:
            return
        now = int(self._now())
        batches = await self._storage.call(store.open_batches(model, now - ABANDONED_AFTER))
        for batch in batches:
            if job := self._jobs.get(batch.id):
                if batch.status == "cancelling" or now >= batch.expires_at:
                    job.stop()
            elif now >= self._postponed.get(batch.id, 0) and (
                _needs_no_route(batch, now) or find_endpoint(app, batch.endpoint)
            ):
                self._start(batch, app, admission)

    def _start(self, batch: BatchRecord, app: FastAPI, admission: BatchAdmission) -> None:
        config = self._engine.config
        job = BatchJob(
            batch,
            self._storage.store,
            partial(call_route, app, self._callers.of_owner(batch.owner)),
            admission,
            self._limits,
            InputLimits(lines=config.storage.max_batch_lines, line_bytes=config.max_request_bytes),
            self._worker,
            now=self._now,
        )
        self._jobs[batch.id] = job
        task = asyncio.create_task(self._run(batch.id, job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, id: str, job: BatchJob) -> None:
        try:
            await job.run()
        except EngineError as error:
            logger.error("batch %s stays unfinished: %s", id, error)
        except StorageError as error:
            self._postponed[id] = self._now() + self._storage_pause
            logger.error("batch %s is tried again in %d seconds: %s", id, self._storage_pause, error)
        except Exception:
            self._postponed[id] = math.inf
            logger.exception("batch %s stays unfinished until the server is started again", id)
        finally:
            del self._jobs[id]


def _needs_no_route(batch: BatchRecord, now: int) -> bool:
    return batch.status in ("finalizing", "cancelling") or now >= batch.expires_at
