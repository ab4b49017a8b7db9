"""Decode steps as graphs: captured once for some batch sizes, then replayed as a whole.

The recorder is CUDA's, or the attention backend's own. Model, head and the most likely token of each row are inside the
graph: they are the same for every request. Operations that depend on requests (penalties, masks, sampling) run on the
logits afterwards. A step is replayed if each of its sequences computes one token that completes it, else run eagerly.

Each sequence keeps its row while it decodes, so that its slot table stays on the device and grows by one entry per
step. Unused rows are padding: slot 0, a context of one token.
"""

from __future__ import annotations

import logging
import time
import weakref
from array import array
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from sglang_plug import (
    AttentionBackend,
    CannotCaptureError,
    CapturedCollectives,
    ChunkView,
    Collectives,
    DeviceTokens,
    ExtensionRanks,
    ForwardBatch,
    GraphCapable,
    GraphPhase,
    GraphRecorder,
    KVPool,
    Model,
    StaticInputPhase,
    StepExecutor,
    is_out_of_memory,
    upload,
)
from sglang_plug_backends.byte_sizes import gigabytes
from sglang_plug_backends.progress_line import ProgressLine

from .capturing import Routers, capture_each, no_collection
from .graph_check import check_replay
from .graph_inputs import KINDS, POSITIONS, SLOTS, TOKENS, GraphInputs
from .graph_variants import GraphVariants, Variant
from .rank_commands import CaptureSizes, ReplayStep, decode_command, encode_command

logger = logging.getLogger(__name__)


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


class DecodeGraphs(StepExecutor):
    """Captures and replays decode steps of one model.

    Args:
        backend: must be ``GraphCapable``.
        kv: the pool; its slot 0 belongs to padding.
        recorder: CUDA's, or the backend's own.
        device: the model's device.
        page_size: slots in a page.
        max_size: largest batch size that may be captured.
        width: tokens of the longest context.
        collectives: this rank's collectives, with which the model was built.
        ranks: the ranks that share the model; all capture and replay the same graphs.
        static_inputs: step extensions with an input of every captured step.
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
        max_size: int,
        width: int,
        collectives: Collectives,
        ranks: ExtensionRanks | None = None,
        static_inputs: Ordered[StaticInputPhase] = (),
        extensions: Ordered[GraphPhase] = (),
    ) -> None:
        self.backend, self.kv, self.recorder = backend, kv, recorder
        self.sizes = recorder.sizes(max_size)
        self.device, self.page_size, self.max_size = device, page_size, (max_size := self.sizes[-1])
        self.ranks, self.collectives = ranks, collectives
        self.variants = GraphVariants[Captured](extensions)
        """Graphs of steps in which extensions take part."""
        self._inputs = GraphInputs(max_size, -(-width // page_size) * page_size, device, static_inputs, len(extensions))
        self._likeliest = torch.zeros(max_size, dtype=torch.int64, device=device)
        self._logits: Tensor | None = None
        self._model: Callable[[], Model | None] = lambda: None
        self._routers = Routers()
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
        logger.info("Capture %s begin. This can take up to several minutes. avail mem=%s", kind, gigabytes(before))
        logger.info("Capture %s bs %s", kind, self.sizes)
        try:
            with ProgressLine(len(self.sizes), logger) as progress:
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
            "Capture %s end. Time elapsed: %.2f s. mem usage=%s. avail mem=%s.",
            kind,
            time.perf_counter() - started,
            gigabytes(before - after),
            gigabytes(after),
        )

    def begin(self, model: Model) -> None:
        """Drop all captured graphs before ``model`` is captured."""
        self._drop()
        self._model = weakref.ref(model)  # weakly, so that replaced weights can be freed
        self._routers = Routers(model)
        self._inputs.forget()
        self.recorder.begin()

    def _drop(self) -> None:
        self.captured = {}
        self.variants.forget()

    @torch.inference_mode()
    def capture_sizes(self, model: Model, sizes: Ordered[int], progress: ProgressLine | None = None) -> None:
        """Capture ``sizes`` in this order, in addition to those already captured. Raises the error of a failed capture.

        Ranks that share the model capture all of them or none; one that is out of memory cannot tell the others.
        """
        if model is not self._model():
            self.begin(model)
        if self.ranks is not None:
            self.ranks.send(encode_command(CaptureSizes(list(sizes))))
        problem: Exception | None = None
        try:
            self._capture_sizes(model, sizes, progress)
        except Exception as error:
            if self.collectives.size == 1 or is_out_of_memory(error):
                raise
            problem = error
        if self.ranks is not None and not self.ranks.all_ranks_succeeded(problem is None):
            raise problem or CannotCaptureError("another rank could not capture its part")

    def _capture_sizes(self, model: Model, sizes: Ordered[int], progress: ProgressLine | None) -> None:
        def capture(size: int) -> None:
            self.captured[size] = self._capture_size(model, size)
            for variant in self.variants.alone() if self.collectives.size == 1 else ():
                self._capture_variant(variant, model, size)

        capture_each(sizes, capture, progress, steps="batches", unit="bs", free_bytes=self.recorder.free_bytes)

    def decode(
        self, model: Model, chunks: Ordered[ChunkView], device_tokens: DeviceTokens | None = None
    ) -> Decoded | None:
        """Replay the step; ``None`` if no graph of it was captured. New weights are captured first."""
        if len(chunks) > self.max_size or not all(map(_decodes, chunks)):
            return None
        if self._routers.are_watched:
            return None
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
            command = ReplayStep(size, self._inputs.encoded(size), tables, device_tokens is None)
            self.ranks.send(encode_command(command))
        self._inputs.apply(captured.batch, fresh)
        if device_tokens is not None:
            self._inputs.give(device_tokens.tokens, [rows[index] for index in device_tokens.chunk_indices])
            if self.ranks is not None:
                self.collectives.broadcast(captured.batch.input_ids)
        self._replay(captured)
        assert self._logits is not None
        return Decoded(rows, self._likeliest[:size], self._logits[:size])

    def run_command(self, model: Model, command: bytes) -> None:
        """Capture or replay, on a worker rank, what rank 0 does.

        Graphs are captured if every rank can capture them; rank 0 logs the reason otherwise.
        """
        match decode_command(command):
            case ReplayStep() as step:
                self._follow_replay(step)
            case CaptureSizes(sizes=sizes):
                try:
                    self.capture_sizes(model, sizes)
                except Exception as error:
                    if is_out_of_memory(error):
                        raise  # the others do not know of it, and wait
                    logger.debug("rank %d captures no graphs: %s", self.collectives.rank, error)

    def _follow_replay(self, step: ReplayStep) -> None:
        captured = self.captured[step.size]
        self._inputs.take(step.size, step.inputs)
        self._inputs.apply(captured.batch, [(row, array("q", slots)) for row, slots in step.tables])
        if not step.known:
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
        )
        for kind, extension in enumerate(self._inputs.static_inputs, KINDS):
            extension.prepare_captured(batch, self._inputs.of(kind, size))
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
        capture, numbers = partial(self._capture_size, model, size), partial(self._inputs.of_variant, size)
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

    def _results(self, logits: Tensor) -> Tensor:
        """Return the tensor for the logits of every graph; made in the first warm-up, of the largest batch."""
        if self._logits is None or self._logits.shape[1] != logits.shape[1] or self._logits.dtype != logits.dtype:
            self._logits = torch.zeros(self.max_size, logits.shape[1], dtype=logits.dtype, device=self.device)
        return self._logits


def _decodes(chunk: ChunkView) -> bool:
    """Report whether captured steps can compute the chunk.

    It must be one generated token, or the last one of a prompt of text without log-probabilities.
    """
    sequence = chunk.sequence
    if chunk.width != 1 or not chunk.complete or sequence.request.task != "generate":
        return False
    request = sequence.request
    return sequence.generated + chunk.ahead > 0 or (request.logprobs is None and sequence.layout is None)
