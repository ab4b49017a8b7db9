"""A rank that is told what to compute: ``python -m sglang_plug.engine.follower``, or a thread of the engine."""

from __future__ import annotations

import faulthandler
import logging
import signal
import sys
from array import array
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import msgspec
import torch
from torch import Tensor

from sglang_plug.attention import GraphCapable
from sglang_plug.attribution import make
from sglang_plug.batch import ForwardBatch, KVPool, Seen, SeenWhole
from sglang_plug.config import ConfigError, EngineConfig
from sglang_plug.executor import Executor, Seat
from sglang_plug.leaving import end_with_parent, leave
from sglang_plug.plugins import PluginError, Plugins
from sglang_plug.request import RequestError

from .adapter_formats import build_adapters
from .fingerprint import compare
from .followed_adapters import FollowedAdapters
from .graphs import CudaRecorder, DecodeGraphs
from .memory import is_out_of_memory
from .parts import Parts, build_parts
from .ranks import (
    Capture,
    End,
    ForgetAdapter,
    Head,
    LoadAdapter,
    Pool,
    Replay,
    Step,
    ToFollower,
    ToldSeen,
    Weights,
    agreed,
)
from .resolve import resolve
from .tables import tables
from .update import WeightUpdater

logger = logging.getLogger(__name__)

FAILED_EXIT, CONFIG_EXIT = 1, 2


class FollowerLaunch(msgspec.Struct, frozen=True):
    """What a follower's process is started with."""

    config: EngineConfig
    """The device is this rank's own."""
    fingerprint: list[tuple[str, str, str]]
    rank: int
    ticket: str


@dataclass(slots=True)
class Follower:
    """One rank's part of the model and of the KV pool, and what the last step left there."""

    parts: Parts
    seat: Seat
    kv: KVPool | None = None
    hidden: Tensor | None = None
    """``[T, hidden]`` of the last step."""
    slots: list[array[int]] = field(default_factory=list)
    """Of each sequence of the last step."""
    graphs: DecodeGraphs | None = None
    """Of the pool."""
    adapters: FollowedAdapters | None = None
    """If requests may have some."""

    @torch.inference_mode()
    def run(self) -> None:
        """Compute what is told, until the end."""
        decoder = msgspec.msgpack.Decoder(ToFollower)
        while True:
            try:
                message = decoder.decode(self.seat.receive())
            except EOFError:
                return
            match message:
                case Pool(slots):
                    self.kv, self.slots, self.graphs = None, [], None  # the old one's memory first
                    self.kv = self.parts.pool(slots)
                case Step():
                    self._step(message)
                case Head(rows):
                    self._head(rows)
                case Capture():
                    self._capture(message)
                case Replay():
                    assert self.graphs is not None, "graphs are captured before they are replayed"
                    self.graphs.follow(message)
                case LoadAdapter(number, path):
                    self._with_adapters().load(number, path)
                case ForgetAdapter(number):
                    self._with_adapters().forget(number)
                case Weights(source, revision):
                    self._update(source, revision)
                case End():
                    return

    def _step(self, step: Step) -> None:
        batch = self._batch(step)
        self.parts.backend.plan(batch)
        with nullcontext() if self.adapters is None else self.adapters.computing(step.adapters, step.counts):
            self.hidden = self.parts.model(batch)

    def _with_adapters(self) -> FollowedAdapters:
        assert self.adapters is not None, "adapters are enabled for all ranks or none"
        return self.adapters

    def _batch(self, step: Step) -> ForwardBatch:
        device, count = self.parts.device, sum(step.counts)
        ends = [start + count for start, count in zip(step.starts, step.counts, strict=True)]
        self.slots = self._slots(step, ends)
        own = array("q")
        for slots, start in zip(self.slots, step.starts, strict=True):
            own += slots[start:]
        if step.tokens is None:
            input_ids = torch.empty(count, dtype=torch.int64, device=device)
            self.seat.collectives.broadcast(input_ids)
        else:
            input_ids = self._numbers(step.tokens)
        return ForwardBatch(
            input_ids=input_ids,
            positions=self._numbers(step.positions),
            slots=self._numbers(own.tobytes()),
            tables=tables(self.slots, ends, device),
            query_lens=step.counts,
            kv_lens=ends,
            page_size=self.parts.resolved.config.cache.page_size,
            kv=self.kv,
            seen=None if step.seen is None else self._seen(step.seen),
        )

    def _slots(self, step: Step, ends: list[int]) -> list[array[int]]:
        """Of each sequence up to its end: what is kept of the step before, and what is new."""
        fresh, taken, found = array("q"), 0, []
        fresh.frombytes(step.slots)
        for row, kept, end in zip(step.before, step.kept, ends, strict=True):
            slots = self.slots[row][:kept] if row >= 0 else array("q")
            slots += fresh[taken : taken + end - kept]
            taken += end - kept
            found.append(slots)
        return found

    def _seen(self, told: ToldSeen) -> Seen:
        device, collectives = self.parts.device, self.seat.collectives
        rows = torch.empty(told.states[0], dtype=torch.int64, device=device)
        states = torch.empty(told.states, dtype=self.parts.resolved.dtype, device=device)
        coordinates = None
        if told.coordinates is not None:
            coordinates = torch.empty(told.coordinates, dtype=torch.int64, device=device)
        for tensor in (rows, states, coordinates):
            if tensor is not None:
                collectives.broadcast(tensor)
        whole = (SeenWhole(sequence=one[0], row=one[1], place=one[2], count=one[3]) for one in told.whole)
        return Seen(rows, states, coordinates, tuple(whole))

    def _head(self, rows: bytes | tuple[int, int]) -> None:
        assert self.hidden is not None, "a step comes before the logits of its rows"
        hidden = self.hidden[self._numbers(rows)] if isinstance(rows, bytes) else self.hidden[slice(*rows)]
        self.parts.model.head(hidden)

    def _capture(self, wanted: Capture) -> None:
        """Capture graphs if every rank can; rank 0 tells why not."""
        if self.graphs is None:
            self.graphs = self._graphs(wanted)
        try:
            self.graphs.capture_sizes(self.parts.model, wanted.sizes)
        except Exception as error:
            if is_out_of_memory(error):
                raise  # the others do not know, and wait
            logger.debug("rank %d captures no graphs: %s", self.seat.collectives.rank, error)

    def _graphs(self, wanted: Capture) -> DecodeGraphs:
        parts, backend = self.parts, self.parts.backend
        recorder = backend.recorder() if isinstance(backend, GraphCapable) else None
        assert self.kv is not None, "a pool comes before its graphs"
        return DecodeGraphs(
            backend,
            self.kv,
            recorder or CudaRecorder(parts.device),
            device=parts.device,
            page_size=parts.resolved.config.cache.page_size,
            most=wanted.most,
            width=wanted.width,
            collectives=parts.collectives,
        )

    def _update(self, source: str, revision: str | None) -> None:
        """Load weights, and serve them if every rank could."""
        updater, found = WeightUpdater(self.parts), None
        try:
            with torch.inference_mode(False), torch.no_grad():
                found = updater.load(source, revision)
        except RequestError as error:
            logger.error("rank %d: %s", self.seat.collectives.rank, error)
        if agreed(found is not None, self.seat.collectives, self.parts.device) and found is not None:
            self.parts.model = found if self.adapters is None else self.adapters.install(found)
            self.parts.use_scales(self.kv)
        self.hidden = None

    def _numbers(self, numbers: bytes) -> Tensor:
        return torch.frombuffer(bytearray(numbers), dtype=torch.int64).to(self.parts.device)


def follow(config: EngineConfig, plugins: Plugins, seat: Seat) -> None:
    """Be a rank of the model that ``config`` names, on the device that it names; comes back at the end.

    Raises ``ConfigError`` if the configuration cannot be served.
    """
    resolved = resolve(config, plugins)
    if resolved.device.type == "cuda":
        torch.cuda.set_device(resolved.device)
    adapters = build_adapters(resolved, plugins)
    parts = build_parts(resolved, seat.collectives, adapters is not None)
    follower = Follower(parts, seat)
    if adapters is not None:
        adapters.install(parts.model)
        follower.adapters = FollowedAdapters(adapters, seat.collectives)
    agreed(True, seat.collectives, parts.device)
    follower.run()


def rank_device(device: torch.device, rank: int) -> str:
    """The device of a rank, if rank 0's is ``device``."""
    return str(device) if device.type == "cpu" else f"{device.type}:{(device.index or 0) + rank}"


def with_device(config: EngineConfig, device: str) -> EngineConfig:
    """The configuration of a rank."""
    return replace(config, model=replace(config.model, device=device))


def main() -> int:
    """Follow until told to end, or until the engine's process is gone."""
    launch = msgspec.json.decode(sys.stdin.buffer.readline(), type=FollowerLaunch)
    logging.basicConfig(level=launch.config.log_level.upper(), format=f"[%(asctime)s rank {launch.rank}] %(message)s")
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the engine says when to stop
    end_with_parent(FAILED_EXIT)
    try:
        plugins = Plugins.discover(launch.config.plugins)
        compare(plugins, launch.fingerprint, f"rank {launch.rank}")
        follow(launch.config, plugins, _seat(launch, plugins))
    except ConfigError as error:
        cause = error.__cause__ if isinstance(error, PluginError) else None
        logger.critical("rank %d: %s", launch.rank, error, exc_info=cause)
        return CONFIG_EXIT
    except Exception:
        logger.critical("rank %d failed", launch.rank, exc_info=True)
        return FAILED_EXIT
    return 0


def _seat(launch: FollowerLaunch, plugins: Plugins) -> Seat:
    component = plugins.get("executor", launch.config.parallel.executor)
    executor: Executor = make(component, component.settings(), base=Executor)
    device = torch.device(launch.config.model.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return executor.join(launch.rank, launch.config.parallel.tp_size, device, launch.ticket)


if __name__ == "__main__":
    leave(main())
