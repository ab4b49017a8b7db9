"""A forward pass in pieces: CUDA graphs of the operations between one layer's attention and the next one's.

Attention depends on the step's sequences; everything else depends only on the number of tokens. A capture is therefore
interrupted wherever a layer attends, and each time the pieces are replayed, attention runs eagerly between them, as in
any other step. Models are not aware of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from sglang_plug import Attention, CannotCaptureError, ForwardBatch, Model
from sglang_plug_backends.wrapped_attention import Attend, wrap_attention

from .cuda_recorder import OpenGraph

OutputShapes = tuple[tuple[torch.Size, torch.dtype], ...]
"""Shapes and dtypes of the results of one attention call."""


def unowned(tensor: Tensor) -> Tensor:
    """Return a view of the same memory that does not own it, so that later pieces may reuse it, as they do in replays.

    The view is only valid while the graph that owns the memory exists.
    """
    if tensor.numel() == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    interface = {
        "shape": (extent * tensor.itemsize,),
        "typestr": "|u1",
        "data": (tensor.data_ptr(), False),
        "version": 3,
    }
    flat = torch.as_tensor(SimpleNamespace(__cuda_array_interface__=interface))
    return flat.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())


@dataclass(frozen=True, slots=True)
class Attended:
    """A layer's attention between two pieces."""

    attend: Attend
    layer: Attention
    inputs: tuple[Tensor, ...]
    """Tensors to which the previous piece writes queries, keys and values."""
    outputs: tuple[Tensor, ...]
    """Tensors from which the next piece reads the attention's results."""
    zeros: tuple[Tensor, ...]
    """Zeros of the sizes of ``outputs``, used for padding, so that no step depends on the previous one."""

    def run(self, batch: ForwardBatch, count: int) -> None:
        """Attend for the first ``count`` tokens, which are those of ``batch``."""
        result = self.attend(self.layer, *(tensor[:count] for tensor in self.inputs), batch)
        results = result if isinstance(result, tuple) else (result,)
        for target, rows, zeros in zip(self.outputs, results, self.zeros, strict=True):
            if count == len(target):
                target.copy_(rows)
            else:
                torch.cat((rows, zeros[count:]), out=target)


@dataclass(frozen=True, slots=True)
class Pieces:
    """The forward pass of a fixed number of tokens."""

    steps: list[tuple[Callable[[], None], Attended]]
    """Each piece, and the attention after it."""
    last: Callable[[], None]
    """The piece after the last attention."""
    hidden: Tensor
    """``[tokens, hidden]``, the output of the last piece."""

    def run(self, batch: ForwardBatch, count: int) -> Tensor:
        """Compute ``[count, hidden]`` of the tokens of ``batch``, which the inputs hold; the next run overwrites it."""
        for replay, attended in self.steps:
            replay()
            attended.run(batch, count)
        self.last()
        return self.hidden[:count]


class Capture:
    """Captures the pieces for one number of tokens.

    Args:
        open_graph: begins to capture the next piece.
        zeros: shared by all captures; grows as needed.
    """

    def __init__(self, open_graph: Callable[[], OpenGraph], zeros: dict[Any, Tensor]) -> None:
        self._open_graph, self._zeros = open_graph, zeros
        self._shapes: list[OutputShapes] = []
        self._steps: list[tuple[Callable[[], None], Attended]] = []
        self._graph: OpenGraph | None = None

    def run(self, model: Model, real: ForwardBatch, static: ForwardBatch) -> Pieces:
        """Compute ``real`` eagerly, then capture ``static``, the same batch without the fields only attention may read.

        Raises ``CannotCaptureError`` if the model reads these fields too, or whatever capturing raises.
        """
        with wrap_attention(model, self._noted):
            model(real)
        with wrap_attention(model, self._cut):
            self._graph = self._open_graph()
            try:
                hidden = model(static)
                last, self._graph = self._graph.close(), None
            finally:
                if self._graph is not None:
                    with suppress(Exception):  # the error that broke the capture is raised already
                        self._graph.close()
        if len(self._steps) != len(self._shapes):
            raise CannotCaptureError(
                f"it called attention {len(self._shapes)} times in one run and {len(self._steps)} times in the next"
            )
        return Pieces(self._steps, last, hidden)

    def _noted(self, attend: Attend) -> Attend:
        """Wrap ``attend`` so that the shapes of its results are recorded."""

        def run(layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor | tuple[Tensor, ...]:
            result = attend(layer, q, k, v, batch)
            results = result if isinstance(result, tuple) else (result,)
            self._shapes.append(tuple((tensor.shape, tensor.dtype) for tensor in results))
            return result

        return run

    def _cut(self, attend: Attend) -> Attend:
        """Replace ``attend`` by a function that ends the current piece and begins the next one."""

        def run(layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor | tuple[Tensor, ...]:
            assert self._graph is not None
            if len(self._steps) == len(self._shapes):
                raise CannotCaptureError(
                    f"it called attention {len(self._shapes)} times in one run and more often in the next"
                )
            shapes = self._shapes[len(self._steps)]
            outputs = tuple(torch.empty(shape, dtype=dtype, device=q.device) for shape, dtype in shapes)
            replay, self._graph = self._graph.close(), None
            inputs, targets = tuple(map(unowned, (q, k, v))), tuple(map(unowned, outputs))
            zeros = tuple(self._zeros_like(output) for output in outputs)
            self._steps.append((replay, Attended(attend, layer, inputs, targets, zeros)))
            self._graph = self._open_graph()
            return outputs if len(outputs) > 1 else outputs[0]

        return run

    def _zeros_like(self, tensor: Tensor) -> Tensor:
        key = tensor.shape[1:], tensor.dtype
        known = self._zeros.get(key)
        if known is None or len(known) < len(tensor):
            known = self._zeros[key] = torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        return known[: len(tensor)]
