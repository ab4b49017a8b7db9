"""Decode steps as graphs: captured once for some batch sizes, replayed in one go.

What captures them is CUDA, or what the attention backend brings along. Model, head and the most likely token of each
row are inside the graph: they are the same for every request. What depends on requests (penalties, masks, drawing)
works on the logits afterwards. A step is replayed if each of its sequences computes one token that completes it; all
others run as ever.

Each sequence keeps its row while it decodes, so that its slot table stays on the device and grows by one entry a
step. Rows that nobody has are padding: slot 0, a context of one token.
"""

from __future__ import annotations

import gc
import logging
import time
import weakref
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Ordered
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sglang_plug.attention import AttentionBackend, CannotCaptureError, GraphCapable, GraphRecorder
from sglang_plug.batch import ForwardBatch, KVPool
from sglang_plug.layers import Router
from sglang_plug.model import Model
from sglang_plug.transfer import pinned, upload

from .graph_check import check_replay
from .launched import Given
from .memory import GIB, is_out_of_memory
from .progress import Progress
from .sequence import Sequence
from .shares import Share

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
        """1, 2, 4, then multiples of 8 (12 too), and ``most`` itself."""
        sizes = {*SMALL_SIZES, 12, *range(SIZE_STEP, most + 1, SIZE_STEP), most}
        return sorted(size for size in sizes if size <= most)

    def begin(self) -> None:
        """A new pool: the graphs of the old one are gone, and its memory with them."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """One graph; what ``work`` returns to no one stays in the graphs' own memory."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            work()
        replay: Callable[[], None] = graph.replay
        return replay

    def free_bytes(self) -> int:
        """As the driver counts it."""
        return torch.cuda.mem_get_info(self._device)[0]


@dataclass(frozen=True, slots=True)
class Decoded:
    """Results of a replayed step; the tensors are overwritten by the next one."""

    rows: list[int]
    """The row of each share."""
    likeliest: Tensor
    """``[size]`` int64: the most likely token of each row, -1 where the logits are not finite."""
    all_logits: Tensor
    """``[size, vocabulary]``"""

    def part(self, shares: Ordered[int]) -> Decoded:
        """Of these shares only."""
        return replace(self, rows=[self.rows[share] for share in shares])

    def logits(self) -> Tensor:
        """``[shares, vocabulary]``, in the shares' order."""
        if self.rows == list(range(len(self.rows))):
            return self.all_logits[: len(self.rows)]
        return self.all_logits[upload(self.rows, torch.int64, self.all_logits.device)]

    def tokens(self) -> Tensor:
        """``[shares]``: the most likely token for each share, in a tensor of its own."""
        if self.rows == list(range(len(self.rows))):
            return self.likeliest[: len(self.rows)].clone()
        return self.likeliest[upload(self.rows, torch.int64, self.likeliest.device)]


@dataclass(slots=True)
class Held:
    """What a row's table on the device holds: a prefix of one sequence's slots."""

    sequence: Sequence
    placement: int
    length: int

    def precedes(self, share: Share) -> bool:
        """True if ``share``, of one token, needs the same and one slot more."""
        same = self.sequence is share.sequence and self.placement == share.sequence.placement
        return same and self.length == share.start


@dataclass(slots=True)
class Captured:
    """The decode step of one batch size."""

    batch: ForwardBatch
    replay: Callable[[], None]


class DecodeGraphs:
    """Captures and replays decode steps of one model.

    Args:
        backend: must be ``GraphCapable``.
        kv: the pool; its slot 0 is the padding's.
        recorder: CUDA's, or the backend's own.
        device: where the model is.
        page_size: slots in a page.
        most: largest batch size that may be captured.
        width: tokens of the longest context.
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
    ) -> None:
        self.backend, self.kv, self.recorder = backend, kv, recorder
        self.sizes = recorder.sizes(most)
        self.device, self.page_size, self.most = device, page_size, (most := self.sizes[-1])
        self._staged = torch.zeros(4, most, dtype=torch.int64)
        self._host = self._staged.numpy()
        self._inputs = torch.zeros(4, most, dtype=torch.int64, device=device)  # tokens, positions, slots, places
        self._every_row = torch.arange(most, device=device)
        self._tables = torch.zeros(most, -(-width // page_size) * page_size, dtype=torch.int64, device=device)
        self._likeliest = torch.zeros(most, dtype=torch.int64, device=device)
        self._logits: Tensor | None = None
        self._held: list[Held | None] = [None] * most
        self._model: Callable[[], Model | None] = lambda: None
        self._routers: list[Router] = []
        self.captured: dict[int, Captured] = {}

    @torch.inference_mode()
    def capture(self, model: Model, *, must_fit: bool = False) -> None:
        """Capture every batch size of ``model``, the largest first, so that the smaller ones fit its memory.

        A model that cannot be captured is served without graphs; the log tells why. With ``must_fit``, an error that
        says that memory does not suffice is raised.
        """
        self._model, self.captured = weakref.ref(model), {}  # weights that were replaced can be freed
        self._routers = [one for one in model.modules() if isinstance(one, Router)]
        self._held = [None] * self.most
        self.recorder.begin()
        name, started, before = self.recorder.name, time.perf_counter(), self.recorder.free_bytes()
        kind = name.lower()
        logger.info("Capture %s begin. This can take up to several minutes. avail mem=%.2f GB", kind, before / GIB)
        logger.info("Capture %s bs %s", kind, self.sizes)
        try:
            with Progress("Capturing batches", len(self.sizes)) as progress:
                self.capture_sizes(model, self.sizes[::-1], progress)
        except CannotCaptureError as error:
            self.captured = {}
            logger.info("The model's decode steps run without %ss: %s", name, error)
            return
        except Exception as error:
            self.captured = {}
            if must_fit and is_out_of_memory(error):
                raise
            logger.warning(
                "The model's decode steps cannot be captured as %ss and run without (slower): %s: %s",
                name,
                type(error).__name__,
                error,
            )
            return
        after = self.recorder.free_bytes()
        logger.info(
            "Capture %s end. Time elapsed: %.2f s. mem usage=%.2f GB. avail mem=%.2f GB.",
            kind,
            time.perf_counter() - started,
            (before - after) / GIB,
            after / GIB,
        )

    @torch.inference_mode()
    def capture_sizes(self, model: Model, sizes: Ordered[int], progress: Progress | None = None) -> None:
        """Capture ``sizes`` in this order, beside what is captured already. Raises what capturing them raises."""
        with _no_collection():
            for done, size in enumerate(sizes, 1):
                self.captured[size] = self._capture_size(model, size)
                if progress is not None:
                    progress.show(done, f"bs={size} avail_mem={self.recorder.free_bytes() / GIB:.2f} GB")

    def run(self, model: Model, shares: Ordered[Share], given: Given | None = None) -> Decoded | None:
        """Replay the step; ``None`` if it is not one that was captured. Call in inference mode.

        ``given``, if there, are those of the step's tokens that only the device knows. What the caller wants of the
        result must be queued before the next step is run. New weights are captured first.
        """
        if len(shares) > self.most or not all(map(_decodes, shares)):
            return None
        if any(router.watcher is not None for router in self._routers):
            return None  # somebody wants to be called in each step
        if model is not self._model():
            self.capture(model)
        if not self.captured:
            return None
        size = min(one for one in self.captured if one >= len(shares))
        captured = self.captured[size]
        rows = self._place(shares, size)
        self._fill(captured.batch, shares, rows, given)
        assert isinstance(self.backend, GraphCapable)
        self.backend.refresh(captured.batch)
        captured.replay()
        assert self._logits is not None
        return Decoded(rows, self._likeliest[:size], self._logits[:size])

    def _capture_size(self, model: Model, size: int) -> Captured:
        assert isinstance(self.backend, GraphCapable)
        self._inputs.zero_()  # the slots of the last step may be somebody's
        batch = ForwardBatch(
            input_ids=self._inputs[0, :size],
            positions=self._inputs[1, :size],
            slots=self._inputs[2, :size],
            tables=self._tables[:size],
            query_lens=[1] * size,
            kv_lens=[1] * size,
            page_size=self.page_size,
            kv=self.kv,
        )
        self.backend.static_plan(batch)

        def work() -> None:
            logits = model.head(model(batch))
            best = logits.max(-1)
            self._results(logits)[:size].copy_(logits)
            broken = (best.values - best.values).isnan()  # of what is not finite; in fewer kernels than isfinite
            self._likeliest[:size].copy_(best.indices.masked_fill_(broken, -1))

        for _ in range(self.recorder.warm_ups):
            work()
        captured = Captured(batch, self.recorder.capture(work))
        if self.recorder.exact:
            assert self._logits is not None
            check_replay(captured.replay, model, self.backend, batch, self._logits[:size])
        return captured

    def _results(self, logits: Tensor) -> Tensor:
        """Where every graph leaves its logits; made in the first warm-up, of the largest batch."""
        if self._logits is None or self._logits.shape[1] != logits.shape[1] or self._logits.dtype != logits.dtype:
            self._logits = torch.zeros(self.most, logits.shape[1], dtype=logits.dtype, device=self.device)
        return self._logits

    def _place(self, shares: Ordered[Share], size: int) -> list[int]:
        """A row below ``size`` for each share: the one it has, if it has one."""
        had = {id(held.sequence): row for row, held in enumerate(self._held[:size]) if held is not None}
        rows = [had.get(id(share.sequence), -1) for share in shares]
        taken = set(rows)
        free = (row for row in range(size) if row not in taken)
        return [next(free) if row < 0 else row for row in rows]

    def _fill(
        self, batch: ForwardBatch, shares: Ordered[Share], rows: Ordered[int], given: Given | None = None
    ) -> None:
        """Bring the static inputs up to date, tables included."""
        size = len(batch.kv_lens)
        lengths = [1] * size
        held: list[Held | None] = [None] * self.most
        tokens, positions, slots, places = self._host
        self._host[:] = 0
        for share, row in zip(shares, rows, strict=True):
            sequence, place = share.sequence, share.start
            known = self._held[row]
            if known is None or not known.precedes(share):
                whole = torch.frombuffer(sequence.slots, dtype=torch.int64, count=place + 1)
                self._tables[row, : place + 1].copy_(pinned(whole, self.device), non_blocking=True)
                known = Held(sequence, sequence.placement, place)
            known.length = place + 1
            held[row] = known
            places[row], slots[row] = place, sequence.slots[place]
            positions[row] = place if sequence.view is None else place + sequence.view.shift
            if not share.unseen:
                tokens[row] = sequence.tokens[place]
            lengths[row] = place + 1
        self._held = held
        batch.kv_lens[:] = lengths
        self._inputs.copy_(pinned(self._staged, self.device), non_blocking=True)
        if given is not None:
            self._give(given.tokens, [rows[place] for place in given.places])
        # padding rows write slot 0 to the start of their tables, which nobody holds
        self._tables[self._every_row[:size], self._inputs[3, :size]] = batch.slots

    def _give(self, tokens: Tensor, rows: Ordered[int]) -> None:
        """Let the rows' input tokens be ``tokens``."""
        if rows == list(range(len(rows))):
            self._inputs[0, : len(rows)].copy_(tokens)
        else:
            self._inputs[0].index_copy_(0, upload(rows, torch.int64, self.device), tokens)


def _decodes(share: Share) -> bool:
    """True if the share is one generated token's, or a prompt's last of which nothing is reported, without adapter."""
    sequence = share.sequence
    if share.width != 1 or not share.complete or sequence.request.task != "generate" or sequence.adapter is not None:
        return False
    request = sequence.request
    return sequence.generated + share.ahead > 0 or (request.logprobs is None and not request.media)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Each capture collects garbage; let it not look at what is there for good."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
