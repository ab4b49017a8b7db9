"""Decode steps as graphs: captured once for some batch sizes, then replayed as a whole.

The recorder is CUDA's, or the attention backend's own. Model, head and the most likely token of each row are inside the
graph: they are the same for every request. Operations that depend on requests (penalties, masks, sampling) run on the
logits afterwards. A step is replayed if each of its sequences computes one token that completes it, else run eagerly.

Each sequence keeps its row while it decodes, so that its slot table stays on the device and grows by one entry per
step. Unused rows are padding: slot 0, a context of one token.
"""

from __future__ import annotations

import gc
import logging
import time
import weakref
from array import array
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Ordered
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from sglang_plug.contracts.model.attention import AttentionBackend, CannotCaptureError, GraphCapable, GraphRecorder
from sglang_plug.contracts.model.batch import ForwardBatch, KVPool
from sglang_plug.contracts.model.model import Model
from sglang_plug.contracts.model.recurrent_state import Recurrent, Runs, StatePool
from sglang_plug.contracts.serving.executor import SINGLE_RANK, CapturedCollectives, Collectives
from sglang_plug.contracts.serving.extension import GraphPhase
from sglang_plug.engine.execution.in_flight_step import DeviceTokens
from sglang_plug.engine.memory.budget import GIB
from sglang_plug.engine.scheduling.scheduled_chunk import ScheduledChunk
from sglang_plug.engine.startup.progress import Progress
from sglang_plug.engine.tensor_parallel.rank_messages import Capture, Ranks, Replay, agreed
from sglang_plug.layers import Router
from sglang_plug.ops.host_device_copy import upload
from sglang_plug.system.out_of_memory import is_out_of_memory

from .graph_check import check_replay
from .graph_inputs import KINDS, POSITIONS, SLOTS, STATES, TOKENS, GraphInputs
from .graph_variants import GraphVariants, Variant

logger = logging.getLogger(__name__)

SMALL_SIZES = (1, 2, 4)
SIZE_STEP = 8


class CudaRecorder(GraphRecorder):
    """CUDA graphs, which share one pool of memory, as only one runs at a time."""

    name = "CUDA graph"
    warm_ups = 2
    exact = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def sizes(self, most: int) -> list[int]:
        """Return the batch sizes to capture: 1, 2, 4, then multiples of 8 (12 too), and ``most`` itself."""
        sizes = {*SMALL_SIZES, 12, *range(SIZE_STEP, most + 1, SIZE_STEP), most}
        return sorted(size for size in sizes if size <= most)

    def begin(self) -> None:
        """Start a new memory pool: the graphs of the old one are gone, and its memory with them."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Capture ``work`` as one graph; its intermediate tensors stay in the graphs' memory pool."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            work()
        replay: Callable[[], None] = graph.replay
        return replay

    def exchange(self, call: Callable[[], None]) -> None:
        """Run a collective call; NCCL's device work is captured like any other."""
        call()

    def free_bytes(self) -> int:
        """Return the free bytes of the device as the driver counts them."""
        return torch.cuda.mem_get_info(self._device)[0]


@dataclass(frozen=True, slots=True)
class Decoded:
    """Results of a replayed step; the tensors are overwritten by the next one."""

    rows: list[int]
    """The row of each chunk."""
    likeliest: Tensor
    """``[size]`` int64: the most likely token of each row, -1 where the logits are not finite."""
    all_logits: Tensor
    """``[size, vocabulary]`` logits of each row."""

    def part(self, chunks: Ordered[int]) -> Decoded:
        """Return the results of these chunks only."""
        return replace(self, rows=[self.rows[chunk] for chunk in chunks])

    def logits(self) -> Tensor:
        """Return ``[chunks, vocabulary]`` in the chunks' order."""
        if self.rows == list(range(len(self.rows))):
            return self.all_logits[: len(self.rows)]
        return self.all_logits[upload(self.rows, torch.int64, self.all_logits.device)]

    def tokens(self) -> Tensor:
        """Return ``[chunks]``: the most likely token for each chunk, in a tensor of its own."""
        if self.rows == list(range(len(self.rows))):
            return self.likeliest[: len(self.rows)].clone()
        return self.likeliest[upload(self.rows, torch.int64, self.likeliest.device)]


@dataclass(slots=True)
class Captured:
    """The decode step of one batch size."""

    batch: ForwardBatch
    replay: Callable[[], None]


class DecodeGraphs:
    """Captures and replays decode steps of one model.

    Args:
        backend: must be ``GraphCapable``.
        kv: the pool; its slot 0 belongs to padding.
        recorder: CUDA's, or the backend's own.
        device: the model's device.
        page_size: slots in a page.
        most: largest batch size that may be captured.
        width: tokens of the longest context.
        ranks: on rank 0 the other ranks, if any: they capture and replay the same graphs.
        collectives: this rank's collectives, with which the model was built.
        states: the pool of recurrent states, if the model has any; its spare row belongs to padding.
        extensions: step extensions that take part in graphs.
    """

    def __init__(
        self,
        backend: AttentionBackend,
        kv: KVPool,
        recorder: GraphRecorder,
        *,
        device: torch.device,
        page_size: int,
        most: int,
        width: int,
        ranks: Ranks | None = None,
        collectives: Collectives = SINGLE_RANK,
        states: StatePool | None = None,
        extensions: Ordered[GraphPhase] = (),
    ) -> None:
        self.backend, self.kv, self.recorder = backend, kv, recorder
        self.sizes = recorder.sizes(most)
        self.device, self.page_size, self.most = device, page_size, (most := self.sizes[-1])
        self.width, self.ranks, self.collectives, self.states = width, ranks, collectives, states
        self.variants = GraphVariants[Captured](extensions)
        """Graphs of steps in which extensions take part."""
        self._inputs = GraphInputs(most, -(-width // page_size) * page_size, device, len(extensions))
        self._likeliest = torch.zeros(most, dtype=torch.int64, device=device)
        self._logits: Tensor | None = None
        self._model: Callable[[], Model | None] = lambda: None
        self._routers: list[Router] = []
        self.captured: dict[int, Captured] = {}
        """Plain graphs by batch size."""

    @torch.inference_mode()
    def capture(self, model: Model, *, must_fit: bool = False) -> None:
        """Capture every batch size of ``model``, the largest first, so that the smaller ones fit its memory.

        A model that cannot be captured is served without graphs; the log says why. With ``must_fit``, an error that
        says that memory does not suffice is raised.
        """
        self.begin(model)
        name, started, before = self.recorder.name, time.perf_counter(), self.recorder.free_bytes()
        kind = name.lower()
        logger.info("Capture %s begin. This can take up to several minutes. avail mem=%.2f GB", kind, before / GIB)
        logger.info("Capture %s bs %s", kind, self.sizes)
        try:
            with Progress("Capturing batches", len(self.sizes)) as progress:
                self.capture_sizes(model, self.sizes[::-1], progress)
        except CannotCaptureError as error:
            self._drop()
            logger.info("The model's decode steps run without %ss: %s", name, error)
            return
        except Exception as error:
            self._drop()
            if (must_fit or self.collectives.size > 1) and is_out_of_memory(error):
                raise  # other ranks wait for a vote
            text = "The model's decode steps cannot be captured as %ss and run without (slower): %s: %s"
            logger.warning(text, name, type(error).__name__, error)
            return
        after = self.recorder.free_bytes()
        logger.info(
            "Capture %s end. Time elapsed: %.2f s. mem usage=%.2f GB. avail mem=%.2f GB.",
            kind,
            time.perf_counter() - started,
            (before - after) / GIB,
            after / GIB,
        )

    def begin(self, model: Model) -> None:
        """Drop all captured graphs before ``model`` is captured."""
        self._drop()
        self._model = weakref.ref(model)  # weakly, so that replaced weights can be freed
        self._routers = [module for module in model.modules() if isinstance(module, Router)]
        self._inputs.forget()
        self.recorder.begin()

    def _drop(self) -> None:
        self.captured = {}
        self.variants.forget()

    @torch.inference_mode()
    def capture_sizes(self, model: Model, sizes: Ordered[int], progress: Progress | None = None) -> None:
        """Capture ``sizes`` in this order, in addition to those already captured. Raises the error of a failed capture.

        Ranks that share the model capture all of them or none; one that is out of memory cannot tell the others.
        """
        if model is not self._model():
            self.begin(model)
        if self.ranks is not None:
            self.ranks.capture(Capture(self.most, self.width, list(sizes)))
        problem: Exception | None = None
        try:
            self._capture_sizes(model, sizes, progress)
        except Exception as error:
            if self.collectives.size == 1 or is_out_of_memory(error):
                raise
            problem = error
        if self.collectives.size > 1 and not agreed(problem is None, self.collectives, self.device):
            raise problem or CannotCaptureError("another rank could not capture its part")

    def _capture_sizes(self, model: Model, sizes: Ordered[int], progress: Progress | None) -> None:
        with no_collection():
            for done, size in enumerate(sizes, 1):
                self.captured[size] = self._capture_size(model, size)
                for variant in self.variants.alone() if self.collectives.size == 1 else ():
                    self._capture_variant(variant, model, size)
                if progress is not None:
                    progress.show(done, f"bs={size} avail_mem={self.recorder.free_bytes() / GIB:.2f} GB")

    def run(
        self, model: Model, chunks: Ordered[ScheduledChunk], device_tokens: DeviceTokens | None = None
    ) -> Decoded | None:
        """Replay the step; ``None`` if no graph of it was captured. Call in inference mode.

        ``device_tokens``: tokens of the step that only the device knows, if any. The caller must queue its reads of
        the result before the next step is run. New weights are captured first.
        """
        if len(chunks) > self.most or not all(map(_decodes, chunks)):
            return None
        if any(router.watcher is not None for router in self._routers):
            return None  # a watcher must be called in each step
        if (numbers := self.variants.numbers(chunks)) is None:
            return None
        if model is not self._model():
            self.capture(model)
        if not self.captured:
            return None
        size = min(captured_size for captured_size in self.captured if captured_size >= len(chunks))
        if (captured := self._captured(model, numbers.variant, size)) is None:
            return None
        rows = self._inputs.rows(chunks, size)
        fresh = self._inputs.describe(chunks, rows, numbers)
        if self.ranks is not None:
            tables = [(row, slots.tobytes()) for row, slots in fresh]
            self.ranks.replay(Replay(size, self._inputs.encoded(size), tables, device_tokens is None))
        self._inputs.apply(captured.batch, fresh)
        if device_tokens is not None:
            self._inputs.give(device_tokens.tokens, [rows[place] for place in device_tokens.places])
            if self.ranks is not None:
                self.collectives.broadcast(captured.batch.input_ids)
        self._replay(captured)
        assert self._logits is not None
        return Decoded(rows, self._likeliest[:size], self._logits[:size])

    def follow(self, message: Replay) -> None:
        """Replay the step that rank 0 replays. Call in inference mode."""
        captured = self.captured[message.size]
        self._inputs.take(message.size, message.inputs)
        self._inputs.apply(captured.batch, [(row, array("q", slots)) for row, slots in message.tables])
        if not message.known:
            self.collectives.broadcast(captured.batch.input_ids)
        self._replay(captured)

    def _replay(self, captured: Captured) -> None:
        assert isinstance(self.backend, GraphCapable)
        self.backend.refresh(captured.batch)
        captured.replay()

    def _capture_size(self, model: Model, size: int) -> Captured:
        assert isinstance(self.backend, GraphCapable)
        self._inputs.tensors.zero_()  # the slots of the last step may have owners by now
        batch = ForwardBatch(
            input_ids=self._inputs.of(TOKENS, size),
            positions=self._inputs.of(POSITIONS, size),
            slots=self._inputs.of(SLOTS, size),
            tables=self._inputs.tables[:size],
            query_lens=[1] * size,
            kv_lens=[1] * size,
            page_size=self.page_size,
            kv=self.kv,
            recurrent=self._recurrent(size),
        )
        self.backend.static_plan(batch)

        def work() -> None:
            logits = model.head(model(batch))
            best = logits.max(-1)
            self._results(logits)[:size].copy_(logits)
            broken = (
                best.values - best.values
            ).isnan()  # True for values that are not finite; needs fewer kernels than isfinite
            self._likeliest[:size].copy_(best.indices.masked_fill_(broken, -1))

        for _ in range(self.recorder.warm_ups):
            work()
        with self._exchanges():
            captured = Captured(batch, self.recorder.capture(work))
        if self.recorder.exact:
            assert self._logits is not None
            check_replay(captured.replay, model, self.backend, batch, self._logits[:size])
        return captured

    def _captured(self, model: Model, variant: Variant, size: int) -> Captured | None:
        """Return the graph of ``variant`` to replay, captured now if there is none that is valid."""
        if not variant:
            return self.captured[size]
        if self.collectives.size > 1:
            return None
        return self.variants.get(variant, size, partial(self._capture_variant, variant, model, size))

    def _capture_variant(self, variant: Variant, model: Model, size: int) -> None:
        """Capture steps of ``variant``; if that fails, they run without graphs from now on."""
        capture, numbers = partial(self._capture_size, model, size), lambda index: self._inputs.of(KINDS + index, size)
        try:
            with no_collection():
                self.variants.put(variant, size, capture, numbers)
        except Exception as error:
            label, name = self.variants.label(variant), self.recorder.name
            logger.warning("Steps with %s run without %ss from now on: %s", label, name, error)
            self.variants.give_up(variant)

    def _exchanges(self) -> AbstractContextManager[None]:
        """Let the recorder handle the exchanges between ranks, inside the context."""
        if isinstance(self.collectives, CapturedCollectives):
            return self.collectives.handed_to(self.recorder.exchange)
        return nullcontext()

    def _recurrent(self, size: int) -> Recurrent | None:
        """Return the recurrent states of a step's sequences, at the rows that the inputs name."""
        if self.states is None:
            return None
        runs = Runs(self._inputs.of(STATES, size), [1] * size, self._inputs.every_row[: size + 1])
        return Recurrent(self.states, runs)

    def _results(self, logits: Tensor) -> Tensor:
        """Return the tensor for the logits of every graph; made in the first warm-up, of the largest batch."""
        if self._logits is None or self._logits.shape[1] != logits.shape[1] or self._logits.dtype != logits.dtype:
            self._logits = torch.zeros(self.most, logits.shape[1], dtype=logits.dtype, device=self.device)
        return self._logits


def _decodes(chunk: ScheduledChunk) -> bool:
    """Report whether captured steps can compute the chunk.

    It must be one generated token, or a prompt's last one without log-probabilities or images.
    """
    sequence = chunk.sequence
    if chunk.width != 1 or not chunk.complete or sequence.request.task != "generate":
        return False
    request = sequence.request
    return sequence.generated + chunk.ahead > 0 or (request.logprobs is None and not request.media)


@contextmanager
def no_collection() -> Iterator[None]:
    """Freeze existing objects while graphs are captured, because each capture collects garbage and would scan them."""
    if gc.get_freeze_count() > 0:  # they are frozen already, since the engine was ready
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
