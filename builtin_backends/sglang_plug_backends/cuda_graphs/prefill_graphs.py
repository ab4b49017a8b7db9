"""Steps of few tokens, prompts or not: replayed in pieces, with eager attention between them.

A step with a prompt of some hundred tokens is bound by the host, which launches its kernels one by one. The operations
that do not depend on sequences are captured for some numbers of tokens; a step is padded to the next larger number and
replayed. Padding is token 0 at position 0, its keys and values go to slot 0, and its attention results are zeros.
"""

from __future__ import annotations

import logging
import time
import weakref
from bisect import bisect_left
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sglang_plug import AttentionBackend, ForwardBatch, KVPool, Model, StepExecutor, UnreadLengths, is_out_of_memory
from sglang_plug_backends.byte_sizes import gigabytes
from sglang_plug_backends.progress_line import ProgressLine

from .capturing import Routers, capture_each
from .cuda_recorder import CudaRecorder
from .piecewise_graphs import Capture, Pieces

logger = logging.getLogger(__name__)

NAME = "piecewise CUDA graph"
STEPS = ((16, 8), (64, 16), (256, 32), (512, 64), (1024, 128))
"""Pairs of a number of tokens, and the distance of captured numbers below it; beyond, the last distance applies."""


def token_counts(max_tokens: int) -> list[int]:
    """Return the numbers of tokens to capture, ascending, ``max_tokens`` among them."""
    counts, count = {max_tokens}, 0
    while count < max_tokens:
        counts.add(count := count + next((step for end, step in STEPS if count < end), STEPS[-1][1]))
    return sorted(number for number in counts if number <= max_tokens)


class PrefillGraphs(StepExecutor):
    """Captures and replays forward passes of one model.

    Args:
        backend: the attention backend, planned anew for each step.
        kv: the pool; its slot 0 belongs to padding.
        recorder: makes the graphs of the pieces.
        device: the model's device.
        page_size: slots in a page.
        max_tokens: tokens of the largest step that is replayed.
    """

    def __init__(
        self,
        backend: AttentionBackend,
        kv: KVPool,
        recorder: CudaRecorder,
        *,
        device: torch.device,
        page_size: int,
        max_tokens: int,
    ) -> None:
        self.backend, self.kv, self.recorder = backend, kv, recorder
        self.device, self.page_size = device, page_size
        self.sizes = token_counts(max_tokens)
        self._inputs = {size: torch.zeros(3 * size, dtype=torch.int64, device=device) for size in self.sizes}
        self._padding = torch.zeros(max_tokens, dtype=torch.int64, device=device)
        self._zeros: dict[Any, Tensor] = {}
        self._model: Callable[[], Model | None] = lambda: None
        self._routers = Routers()
        self.captured: dict[int, Pieces] = {}

    @torch.inference_mode()
    def capture(self, model: Model, *, must_fit: bool = False) -> None:
        """Capture all numbers of tokens, the largest first, so that the smaller ones fit its memory.

        A model that cannot be captured is served without graphs; the log says why. With ``must_fit``, an error that
        says that memory does not suffice is raised.
        """
        self._model, self.captured = weakref.ref(model), {}  # weakly, so that replaced weights can be freed
        self._routers = Routers(model)
        self.recorder.begin()
        started, before = time.perf_counter(), self.recorder.free_bytes()
        try:
            with ProgressLine(len(self.sizes), logger) as progress:
                self.capture_sizes(model, self.sizes[::-1], progress)
        except Exception as error:
            self.captured = {}
            if must_fit and is_out_of_memory(error):
                raise
            logger.warning("Prompts are computed without %ss: %s: %s", NAME, type(error).__name__, error)
            return
        taken, seconds = before - self.recorder.free_bytes(), time.perf_counter() - started
        logger.info(
            "Captured %ss of up to %d tokens. Time elapsed: %.2f s. mem usage=%s.",
            NAME,
            self.sizes[-1],
            seconds,
            gigabytes(taken),
        )

    @torch.inference_mode()
    def capture_sizes(self, model: Model, sizes: Ordered[int], progress: ProgressLine | None = None) -> None:
        """Capture ``sizes`` in this order, besides those already captured. Raises the error of a failed capture."""

        def capture(size: int) -> None:
            self.captured[size] = self._capture_size(model, size)

        capture_each(sizes, capture, progress, steps="prompts", unit="tokens", free_bytes=self.recorder.free_bytes)

    def hidden(self, model: Model, batch: ForwardBatch) -> Tensor | None:
        """Return ``[T, hidden]`` of a planned step; ``None`` if no graph of it was captured.

        New weights are captured first.
        """
        count = len(batch.input_ids)
        if count > self.sizes[-1] or batch.multimodal is not None or batch.recurrent is not None:
            return None
        if self._routers.are_watched:
            return None
        if model is not self._model():
            self.capture(model)
        if not self.captured:
            return None
        size = self.sizes[bisect_left(self.sizes, count)]
        padding = self._padding[: size - count]
        parts = batch.input_ids, padding, batch.positions, padding, batch.slots, padding
        torch.cat(parts, out=self._inputs[size])
        return self.captured[size].run(batch, count)

    def _capture_size(self, model: Model, size: int) -> Pieces:
        inputs = self._inputs[size].zero_()  # the slots of the last step may have owners by now
        input_ids, positions, slots = inputs.view(3, size)
        real = ForwardBatch(
            input_ids=input_ids,
            positions=positions,
            slots=slots,
            tables=torch.zeros(1, size, dtype=torch.int64, device=self.device),
            query_lens=[size],
            kv_lens=[size],
            page_size=self.page_size,
            kv=self.kv,
        )
        self.backend.plan(real)
        unread = UnreadLengths()
        static = replace(real, tables=real.tables[:0, :0], query_lens=unread, kv_lens=unread, plan=None)
        return Capture(self.recorder.open, self._zeros).run(model, real, static)
