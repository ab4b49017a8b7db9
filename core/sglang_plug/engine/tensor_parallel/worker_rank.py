"""A worker rank, which computes the steps that rank 0 sends, in a process or in a thread of the engine.

The process is ``python -m sglang_plug.engine.tensor_parallel.worker_rank``.
"""

from __future__ import annotations

import faulthandler
import logging
import sys
from array import array
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import msgspec
import torch
from torch import Tensor

from sglang_plug.config import ConfigError, EngineConfig
from sglang_plug.contracts.model.batch import ForwardBatch, KVPool
from sglang_plug.contracts.request import RequestError
from sglang_plug.contracts.serving.executor import Executor, RankEndpoint
from sglang_plug.engine.execution.executors import StepExecutors, worker_executors
from sglang_plug.engine.execution.rank_components import RankComponents, build_rank_components
from sglang_plug.engine.execution.step_batch import slot_tables
from sglang_plug.engine.execution.weight_update import WeightUpdater
from sglang_plug.engine.extensions.build import build_extensions
from sglang_plug.engine.loading.resolve import resolve
from sglang_plug.engine.memory.prefix_pool import return_pages
from sglang_plug.engine.messages.rank_messages import (
    End,
    ExtensionCommand,
    Head,
    Pool,
    ReturnMemory,
    Step,
    ToWorkerRank,
    Weights,
)
from sglang_plug.plugins.attribution import make
from sglang_plug.plugins.installed.fingerprint import check_same_plugins
from sglang_plug.plugins.lifecycle import ComponentLifecycle
from sglang_plug.plugins.registry import PluginError, Plugins
from sglang_plug.system.child_process import leave_signals_to_parent
from sglang_plug.system.freed_memory import return_freed_memory
from sglang_plug.system.process_exit import ParentWatch, exit_process

logger = logging.getLogger(__name__)

FAILED_EXIT, CONFIG_EXIT = 1, 2


class WorkerRankLaunch(msgspec.Struct, frozen=True):
    """The input with which the process of a worker rank is started."""

    config: EngineConfig
    """The configuration, with this rank's own device."""
    fingerprint: list[tuple[str, str, str]]
    rank: int
    rendezvous: str


@dataclass(slots=True)
class WorkerRank:
    """One rank's part of the model and of the KV pool, and the state of the last step."""

    components: RankComponents
    endpoint: RankEndpoint
    kv: KVPool | None = None
    hidden: Tensor | None = None
    """Hidden states ``[T, hidden]`` of the last step."""
    slots: list[array[int]] = field(default_factory=list)
    """The slots of each sequence of the last step."""
    executors: StepExecutors = field(default_factory=StepExecutors)
    """The executors for the current pool."""

    @torch.inference_mode()
    def run(self) -> None:
        """Handle messages until the end."""
        decoder = msgspec.msgpack.Decoder(ToWorkerRank)
        while True:
            try:
                message = decoder.decode(self.endpoint.receive())
            except EOFError:
                return
            match message:
                case Pool(slots, max_context):
                    self.kv, self.slots, self.executors = None, [], StepExecutors()  # free the memory first
                    self.kv = self.components.pool(slots)
                    self.executors = worker_executors(self.components, self.kv, max_context)
                case ReturnMemory(runs):
                    if self.kv is not None:
                        return_pages(self.kv, runs)
                    return_freed_memory()
                case Step():
                    self._step(message)
                case Head(rows):
                    self._head(rows)
                case ExtensionCommand():
                    self._follow(message)
                case Weights(source, revision):
                    self._update(source, revision)
                case End():
                    return

    def _step(self, step: Step) -> None:
        batch = self._batch(step)
        with ExitStack() as stack:
            for name, sent in step.extensions.items():
                extension_step = sent.receive(self.endpoint.collectives, self.components.device)
                if (context := self.components.extensions.prepare_step[name](extension_step, batch)) is not None:
                    stack.enter_context(context)
            self.components.backend.plan(batch)
            self.hidden = self.components.model(batch)

    def _batch(self, step: Step) -> ForwardBatch:
        device, count = self.components.device, sum(step.counts)
        ends = [start + count for start, count in zip(step.starts, step.counts, strict=True)]
        self.slots = self._slots(step, ends)
        own = array("q")
        for slots, start in zip(self.slots, step.starts, strict=True):
            own += slots[start:]
        if step.tokens is None:
            input_ids = torch.empty(count, dtype=torch.int64, device=device)
            self.endpoint.collectives.broadcast(input_ids)
        else:
            input_ids = self._numbers(step.tokens)
        return ForwardBatch(
            input_ids=input_ids,
            positions=self._numbers(step.positions),
            slots=self._numbers(own.tobytes()),
            tables=slot_tables(self.slots, ends, device),
            query_lens=step.counts,
            kv_lens=ends,
            page_size=self.components.page_size,
            kv=self.kv,
        )

    def _slots(self, step: Step, ends: list[int]) -> list[array[int]]:
        """Return each sequence's slots up to its end: those kept from the previous step, and the new ones."""
        fresh, taken, all_slots = array("q"), 0, []
        fresh.frombytes(step.slots)
        for row, kept, end in zip(step.before, step.kept, ends, strict=True):
            slots = self.slots[row][:kept] if row >= 0 else array("q")
            slots += fresh[taken : taken + end - kept]
            taken += end - kept
            all_slots.append(slots)
        return all_slots

    def _head(self, rows: bytes | tuple[int, int]) -> None:
        assert self.hidden is not None, "a step comes before the logits of its rows"
        hidden = self.hidden[self._numbers(rows)] if isinstance(rows, bytes) else self.hidden[slice(*rows)]
        self.components.model.head(hidden)

    def _follow(self, message: ExtensionCommand) -> None:
        """Let the executor of a step extension, or else the extension itself, follow a command."""
        executor = self.executors.by_name.get(message.name)
        if executor is not None:
            executor.run_command(self.components.model, message.command)
        else:
            self.components.extensions.handle_command[message.name](message.command)

    def _update(self, source: str, revision: str | None) -> None:
        """Load weights, and use them if every rank could."""
        try:
            with torch.inference_mode(False), torch.no_grad():
                WeightUpdater(self.components, self.kv)(source, revision)
        except Exception as error:
            logger.error(
                "rank %d: %s", self.endpoint.collectives.rank, error, exc_info=not isinstance(error, RequestError)
            )
        self.hidden = None

    def _numbers(self, numbers: bytes) -> Tensor:
        return torch.frombuffer(bytearray(numbers), dtype=torch.int64).to(self.components.device)


def follow(config: EngineConfig, plugins: Plugins, endpoint: RankEndpoint) -> None:
    """Run a worker rank of the model that ``config`` names, on its device; return when it is told to end.

    Raises ``ConfigError`` if the configuration cannot be served.
    """
    resolved = resolve(config, plugins)
    if resolved.device.type == "cuda":
        torch.cuda.set_device(resolved.device)
    extensions = build_extensions(resolved, plugins, collectives=endpoint.collectives).points
    components = build_rank_components(resolved, extensions.forward, endpoint.collectives)
    components.use(components.model)
    worker_rank = WorkerRank(components, endpoint)
    components.all_ranks_succeeded(True)
    try:
        plugins.lifecycle.start({"rank": endpoint.collectives.rank, "tp_size": endpoint.collectives.size})
        worker_rank.run()
    finally:
        plugins.lifecycle.stop()


def rank_device(device: torch.device, rank: int) -> str:
    """Return the device of a rank, if rank 0's is ``device``."""
    return str(device) if device.type == "cpu" else f"{device.type}:{(device.index or 0) + rank}"


def with_device(config: EngineConfig, device: str) -> EngineConfig:
    """Return ``config`` for a rank on ``device``."""
    return replace(config, model=replace(config.model, device=device))


def main() -> int:
    """Run the worker rank until an ``End`` message arrives or the engine's process ends."""
    leave_signals_to_parent()
    launch = msgspec.json.decode(sys.stdin.buffer.readline(), type=WorkerRankLaunch)
    logging.basicConfig(level=launch.config.log_level.upper(), format=f"[%(asctime)s rank {launch.rank}] %(message)s")
    faulthandler.enable()
    lifecycle = ComponentLifecycle()
    ParentWatch(FAILED_EXIT, lifecycle.stop)
    try:
        plugins = Plugins.discover(launch.config.plugins, lifecycle)
        check_same_plugins(plugins.fingerprint, launch.fingerprint, f"rank {launch.rank}")
        follow(launch.config, plugins, _endpoint(launch, plugins))
    except ConfigError as error:
        cause = error.__cause__ if isinstance(error, PluginError) else None
        logger.critical("rank %d: %s", launch.rank, error, exc_info=cause)
        return CONFIG_EXIT
    except Exception:
        logger.critical("rank %d failed", launch.rank, exc_info=True)
        return FAILED_EXIT
    return 0


def _endpoint(launch: WorkerRankLaunch, plugins: Plugins) -> RankEndpoint:
    component = plugins.get("executor", launch.config.parallel.executor)
    executor: Executor = make(component, component.settings(), base=Executor)
    device = torch.device(launch.config.model.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return executor.join(launch.rank, launch.config.parallel.tp_size, device, launch.rendezvous)


if __name__ == "__main__":
    exit_process(main())
