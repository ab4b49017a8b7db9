"""A forward pass in pieces: CUDA graphs of what lies between one layer's attention and the next one's.

What attention computes depends on the step's sequences; everything else only on how many tokens there are. A capture is
therefore interrupted wherever a layer attends, and each time the pieces are replayed, attention runs between them as it
does in any other step. Models do not know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from sglang_plug.attention import Attention, CannotCaptureError
from sglang_plug.batch import ForwardBatch
from sglang_plug.model import Model

Attend = Callable[..., Tensor | tuple[Tensor, ...]]
"""One of a backend's ways to attend, such as ``AttentionBackend.run``."""
Found = tuple[tuple[torch.Size, torch.dtype], ...]
"""Shapes and dtypes of what it finds."""


class OpenGraph:
    """A CUDA graph that is being captured, from now on.

    Args:
        pool: its memory.
    """

    def __init__(self, pool: Any) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._context = torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local")
        self._context.__enter__()

    def close(self) -> Callable[[], None]:
        """No more of it; what comes back does it again."""
        self._context.__exit__(None, None, None)
        replay: Callable[[], None] = self._graph.replay
        return replay


class CudaPieces:
    """Captures one piece after the other, in one pool of memory: they are replayed in the same order."""

    name = "piecewise CUDA graph"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def begin(self) -> None:
        """A new pool: the pieces of the old one are gone, and its memory with them."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        self._pool = torch.cuda.graph_pool_handle()

    def open(self) -> OpenGraph:
        """The next piece."""
        return OpenGraph(self._pool)

    def free_bytes(self) -> int:
        """As the driver counts it."""
        return torch.cuda.mem_get_info(self._device)[0]


def unowned(tensor: Tensor) -> Tensor:
    """The same numbers at the same place, which later pieces may use again, as they do when they are replayed.

    Only valid while the graph is there in whose memory they are.
    """
    if tensor.numel() == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    place = {
        "shape": (reach * tensor.itemsize,),
        "typestr": "|u1",
        "data": (tensor.data_ptr(), False),
        "version": 3,
    }
    flat = torch.as_tensor(SimpleNamespace(__cuda_array_interface__=place))
    return flat.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())


@dataclass(frozen=True, slots=True)
class Attended:
    """A layer's attention between two pieces."""

    attend: Attend
    layer: Attention
    given: tuple[Tensor, ...]
    """Queries, keys and values, where the piece before leaves them."""
    found: tuple[Tensor, ...]
    """Where the piece after it expects what comes of them."""
    zeros: tuple[Tensor, ...]
    """As large as ``found``: what padding gets, so that no step depends on the one before it."""

    def run(self, batch: ForwardBatch, count: int) -> None:
        """Attend for the first ``count`` tokens, those of ``batch``."""
        found = self.attend(self.layer, *(one[:count] for one in self.given), batch)
        several = found if isinstance(found, tuple) else (found,)
        for target, rows, zeros in zip(self.found, several, self.zeros, strict=True):
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
    """``[tokens, hidden]``, what the last piece finds."""

    def run(self, batch: ForwardBatch, count: int) -> Tensor:
        """``[count, hidden]`` of the tokens of ``batch``, which are in the pieces' inputs; overwritten by the next."""
        for replay, attended in self.steps:
            replay()
            attended.run(batch, count)
        self.last()
        return self.hidden[:count]


class Capture:
    """Captures the pieces of one number of tokens.

    Args:
        recorder: makes the graphs.
        zeros: shared by all captures; grows as needed.
    """

    def __init__(self, recorder: CudaPieces, zeros: dict[Any, Tensor]) -> None:
        self._recorder, self._zeros = recorder, zeros
        self._shapes: list[Found] = []
        self._steps: list[tuple[Callable[[], None], Attended]] = []
        self._graph: OpenGraph | None = None

    def run(self, model: Model, real: ForwardBatch, static: ForwardBatch) -> Pieces:
        """Compute ``real``, as a step is, and capture ``static``, the same without what attention alone may look at.

        Raises ``CannotCaptureError`` if the model looks at it too, or whatever capturing raises.
        """
        with _attending_by(model, self._noted):
            model(real)
        with _attending_by(model, self._cut):
            self._graph = self._recorder.open()
            try:
                hidden = model(static)
                last, self._graph = self._graph.close(), None
            finally:
                if self._graph is not None:
                    with suppress(Exception):  # what broke the capture is raised already
                        self._graph.close()
        if len(self._steps) != len(self._shapes):
            raise CannotCaptureError(f"it attended {len(self._shapes)} times, and then {len(self._steps)} times")
        return Pieces(self._steps, last, hidden)

    def _noted(self, attend: Attend) -> Attend:
        """``attend``; the shapes of what it finds are kept."""

        def run(layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor | tuple[Tensor, ...]:
            found = attend(layer, q, k, v, batch)
            several = found if isinstance(found, tuple) else (found,)
            self._shapes.append(tuple((one.shape, one.dtype) for one in several))
            return found

        return run

    def _cut(self, attend: Attend) -> Attend:
        """In the place of ``attend``: one piece ends, the next one begins."""

        def run(layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor | tuple[Tensor, ...]:
            assert self._graph is not None
            if len(self._steps) == len(self._shapes):
                raise CannotCaptureError(f"it attended {len(self._shapes)} times, and then more often")
            shapes = self._shapes[len(self._steps)]
            found = tuple(torch.empty(shape, dtype=dtype, device=q.device) for shape, dtype in shapes)
            replay, self._graph = self._graph.close(), None
            given, targets = tuple(map(unowned, (q, k, v))), tuple(map(unowned, found))
            zeros = tuple(self._zeros_like(one) for one in found)
            self._steps.append((replay, Attended(attend, layer, given, targets, zeros)))
            self._graph = self._recorder.open()
            return found if len(found) > 1 else found[0]

        return run

    def _zeros_like(self, tensor: Tensor) -> Tensor:
        key = tensor.shape[1:], tensor.dtype
        known = self._zeros.get(key)
        if known is None or len(known) < len(tensor):
            known = self._zeros[key] = torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        return known[: len(tensor)]


@contextmanager
def _attending_by(model: Model, around: Callable[[Attend], Attend]) -> Iterator[None]:
    """Inside, all layers of ``model`` attend by what ``around`` makes of their ways to attend."""
    with ExitStack() as layers:
        for module in model.modules():
            if isinstance(module, Attention):
                layers.enter_context(module.attending_by(around))
        yield


class Unread(list[int]):
    """What a model must not look at while it is captured, as it is another one in each step."""

    def _refuse(self, *given: Any) -> Any:
        raise CannotCaptureError("it looks at the lengths of sequences, not only at tokens")

    __len__ = __getitem__ = __iter__ = __contains__ = __eq__ = _refuse
