"""The contract between models and attention backends: plan once per step, run once per layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sglang_plug.config import ConfigError

from .batch import BidirectionalImage, ForwardBatch, KVPool, widened

if TYPE_CHECKING:
    from .model import BuildEnv


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """The geometry of attention that a backend and the KV pool need before the first batch; numbers are per rank."""

    heads: int
    kv_heads: int
    dim: int
    layers: int
    value_dim: int | None = None
    """``None``: the same as ``dim``."""
    values_in_keys: bool = False
    """A token's value is the first ``value_dim`` numbers of its key, so the KV pool holds them once (multi-head latent
    attention; DeepSeek-AI, 2024)."""
    kv_dtype: torch.dtype | None = None
    """The dtype of the KV pool; ``None``: the model's. Only backends that declare another dtype
    (``AttentionSpec.kv_dtypes``) receive one."""
    sinks: bool = False
    """True if some layers have attention sinks, which need a backend that is ``LSECapable``."""

    def of_rank(self, size: int) -> AttentionShape:
        """Return the shape of each rank if ``size`` ranks share the heads of this model.

        Raises ``ConfigError`` if the heads cannot be shared evenly.
        """
        if self.heads % size or (self.kv_heads % size and size % self.kv_heads):
            raise ConfigError(
                f"--tp-size {size}: the model's {self.heads} attention heads, {self.kv_heads} of them with keys and "
                "values, cannot be shared evenly; choose a number that divides both"
            )
        return replace(self, heads=self.heads // size, kv_heads=max(1, self.kv_heads // size))

    @property
    def kv_numel_per_token(self) -> int:
        """Numbers that one layer stores for one token."""
        values = 0 if self.values_in_keys else self.value_dim or self.dim
        return self.kv_heads * (self.dim + values)


AttentionWithLSE = tuple[Tensor, Tensor]
"""Attention ``[T, heads, value_dim]`` and its log-sum-exp (LSE) ``[T, heads]`` float32: for each query the logarithm of
the sum of the exponentials of its scaled and capped logits."""


class AttentionBackend(ABC):
    """Stores this step's keys and values, and attends over each sequence's whole context.

    A backend holds no batch: ``plan`` leaves the data that ``run`` needs in ``batch.plan``, so two batches may be in
    flight.
    """

    def __init__(self, shape: AttentionShape, device: torch.device, settings: Any = None) -> None:
        self.shape, self.device, self.settings = shape, device, settings

    @abstractmethod
    def plan(self, batch: ForwardBatch) -> None:
        """Prepare a step. Called once per step, before the model; may leave anything in ``batch.plan``."""

    @abstractmethod
    def run(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        """Compute the attention of one layer. Called once per layer.

        ``q`` is ``[T, heads, dim]``, ``k`` ``[T, kv_heads, dim]``, ``v`` ``[T, kv_heads, value_dim]``; the result is
        ``[T, heads, value_dim]``. If ``layer.causal``, a new token attends to its context up to itself, otherwise to
        the whole context; if ``layer.window`` is set, at most to the last ``layer.window`` tokens. With
        ``shape.values_in_keys``, ``v`` is ``k[..., :value_dim]``, and ``batch.kv.v`` are views of ``batch.kv.k``. With
        ``shape.kv_dtype``, numbers in the pool must be multiplied by ``batch.kv.k_scale`` and ``v_scale`` of the layer.
        """


class FusedStoreCapable(ABC):
    """Optional second base of a backend that can leave storing to the kernel that rotates (``Kernels.rope_store``)."""

    @abstractmethod
    def run_after_store(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        """Compute the same as ``AttentionBackend.run``, with this step's ``k`` and ``v`` already in ``batch.kv``."""


class LSECapable(ABC):
    """Optional second base of a backend that also returns the log-sum-exp (LSE) of attention, which sinks need."""

    @abstractmethod
    def run_with_lse(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> AttentionWithLSE:
        """Compute the same as ``AttentionBackend.run``, and return the log-sum-exp, too."""


class GraphCapable(ABC):
    """Optional second base of a backend whose decode steps can be captured, as CUDA graphs or by its own recorder."""

    @abstractmethod
    def static_plan(self, batch: ForwardBatch) -> None:
        """Plan for one padded batch size with tensors that keep their addresses. Called before a capture."""

    @abstractmethod
    def refresh(self, batch: ForwardBatch) -> None:
        """Bring the static plan up to date in place. Called before each replay.

        The previous replay may still be running. Change the tensors that it reads by work that is queued on the device,
        and do not overwrite host memory that the device has not read yet.
        """

    def recorder(self) -> GraphRecorder | None:
        """Return the recorder that captures the steps; ``None``: CUDA graphs, which need CUDA."""
        return None


class CannotCaptureError(RuntimeError):
    """The recorded work has an operation that the recorder cannot repeat; the message names it."""


class UnreadLengths(list[int]):
    """A list that a model must not read while it is captured, because its contents differ in each step."""

    def _refuse(self, *arguments: Any) -> Any:
        raise CannotCaptureError("it reads the lengths of sequences on the host")

    __len__ = __getitem__ = __iter__ = __contains__ = __eq__ = _refuse


class GraphRecorder(ABC):
    """Captures the work of a decode step and replays it as a whole on the same tensors."""

    name: str = "decode graph"
    """The name of one recording in the log."""
    warm_ups: int = 1
    """Number of runs before a capture, in which libraries create handles and backends meet every layer."""
    exact: bool = True
    """True if replays equal runs to the last bit, and a capture may miss work that is computed in Python. Each capture
    is then compared once with a run on other inputs, and discarded if they differ."""

    @abstractmethod
    def sizes(self, max_size: int) -> list[int]:
        """Return the batch sizes to capture, ascending, up to ``max_size``; a step is padded to the next size."""

    def begin(self) -> None:  # noqa: B027 (optional)
        """Start the captures of a model, and forget those of the previous model."""

    @abstractmethod
    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Do ``work`` while recording it, and return a function that repeats it.

        Raises ``CannotCaptureError`` if that is not possible.
        """

    def exchange(self, call: Callable[[], None]) -> None:
        """Make ``call``, by which ranks exchange tensors, while ``work`` is captured, and let replays repeat it.

        Raises ``CannotCaptureError`` if that is not possible.
        """
        raise CannotCaptureError(f"several ranks share the model, and a {self.name} cannot wait for the others")

    @abstractmethod
    def free_bytes(self) -> int:
        """Return the free memory of the device in bytes."""


class TokenReplay(ABC):
    """A recorded forward pass that is replayed for any smaller number of tokens."""

    @abstractmethod
    def run(self, batch: ForwardBatch) -> Tensor:
        """Compute ``[T, hidden]`` of a planned step; the next call overwrites the result.

        Rows that are not among ``batch.output_rows`` may have any values.
        """


class ReplayCapable(ABC):
    """An attention backend that can record a whole forward pass once, for steps of any smaller number of tokens."""

    recorded_tokens: int
    """Tokens of the recorded forward pass, the maximum of a replay."""

    @abstractmethod
    def plan(self, batch: ForwardBatch) -> None:
        """See ``AttentionBackend.plan``."""

    @abstractmethod
    def record(self, forward: Callable[[ForwardBatch], Tensor], batch: ForwardBatch) -> TokenReplay:
        """Record ``forward(batch)``, which computes ``[recorded_tokens, hidden]``; it need not be computed.

        ``batch`` is planned and has one sequence of ``recorded_tokens`` tokens in slot 0. Its lengths raise
        ``CannotCaptureError`` where ``forward`` reads them. The first steps are computed both ways and compared by the
        engine's executor, bit by bit.

        Raises ``CannotCaptureError`` if the operations cannot be repeated for another number of tokens.
        """

    def record_largest_step(self, forward: Callable[[ForwardBatch], Tensor], kv: KVPool, page_size: int) -> TokenReplay:
        """Plan the largest step, hide its lengths, and ``record`` it."""
        batch = self.largest_step(kv, page_size)
        self.plan(batch)
        return self.record(forward, replace(batch, query_lens=UnreadLengths(), kv_lens=UnreadLengths()))

    def largest_step(self, kv: KVPool, page_size: int) -> ForwardBatch:
        """Return a batch of one sequence of ``recorded_tokens`` tokens, all in slot 0 of ``kv``; it is not planned."""
        size = self.recorded_tokens
        input_ids, positions, slots = torch.zeros(3, size, dtype=torch.int64, device=kv.k[0].device)
        return ForwardBatch(
            input_ids=input_ids,
            positions=positions,
            slots=slots,
            tables=slots[None],
            query_lens=[size],
            kv_lens=[size],
            page_size=page_size,
            kv=kv,
        )


class Attention(nn.Module):
    """The attention of one layer; it holds no weights, no cache and no batch.

    ``fuses_rope`` is true if ``rotary`` rotates and stores in one kernel.

    Args:
        env: the environment that the model is built in.
        index: the layer's index in the KV pool.
        scale: factor on the query-key products.
        causal: whether a token attends only to itself and earlier tokens.
        window: number of tokens, itself included, that a token attends to; ``None``: all.
        softcap: cap of the logits, ``softcap * tanh(logits / softcap)``; ``None``: no cap.
    """

    def __init__(
        self,
        env: BuildEnv,
        index: int,
        *,
        scale: float,
        causal: bool = True,
        window: int | None = None,
        softcap: float | None = None,
    ) -> None:
        super().__init__()
        self.index, self.scale, self.causal = index, scale, causal
        self.window, self.softcap = window, softcap
        self._run: Callable[..., Any] = env.attention.run  # resolved once: no lookup per token
        self._rope = env.kernels.apply_rope
        self._rope_store = self._run_after_store = None
        run_after_store = (
            None
            if env.attention.shape.values_in_keys
            else _own_method(env.attention, FusedStoreCapable, "run_after_store")
        )
        if run_after_store is not None:
            self._rope_store, self._run_after_store = env.kernels.rope_store, run_after_store
        self.fuses_rope = self._rope_store is not None
        self._run_with_lse = _own_method(env.attention, LSECapable, "run_with_lse")
        if self._run_with_lse is None and env.attention.shape.sinks:
            raise ConfigError(
                f"the model has attention sinks, which {type(env.attention).__name__} does not do; "
                "use --attention-backend torch or triton"
            )

    @contextmanager
    def wrap_attention(self, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
        """Attend with ``around(run)`` inside the context; all ways of the backend to attend are wrapped."""
        before = self._run, self._run_after_store, self._run_with_lse
        run, stored, with_lse = before
        self._run = around(run)
        self._run_after_store = None if stored is None else around(stored)
        self._run_with_lse = None if with_lse is None else around(with_lse)
        try:
            yield
        finally:
            self._run, self._run_after_store, self._run_with_lse = before

    def forward(self, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        """Attend with ``q`` ``[T, heads, dim]``, ``k`` and ``v``; return ``[T, heads, value_dim]``."""
        return self._add_image_attention(self._run(self, q, k, v, batch), q, batch)

    def with_sinks(self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, batch: ForwardBatch) -> Tensor:
        """Attend like ``forward``, with the attention sinks ``[heads]`` (Xiao et al., 2023).

        Every query of a head also attends to a token without a value whose logit is the head's sink, which takes weight
        from the other tokens. The model's ``AttentionShape`` must have ``sinks``.
        """
        assert self._run_with_lse is not None, "the model's AttentionShape does not say that it has sinks"
        attended, log_weights = self._run_with_lse(self, q, k, v, batch)
        return attended * torch.sigmoid(log_weights - sinks.float())[..., None].to(attended.dtype)

    def rotary(self, q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, batch: ForwardBatch) -> Tensor:
        """Attend like ``forward`` after rotating ``q`` and ``k`` by ``cos``/``sin`` ``[T, width]``.

        Not for models whose values are a part of their keys.
        """
        if self._rope_store is None or self._run_after_store is None or batch.kv is None:
            q, k = self._rope(q, cos, sin).to(q.dtype), self._rope(k, cos, sin).to(k.dtype)
            return self.forward(q, k, v, batch)
        q, k = self._rope_store(q, k, v, cos, sin, batch.kv, self.index, batch.slots)
        return self._add_image_attention(self._run_after_store(self, q, k, v, batch), q, batch)

    def _add_image_attention(self, attended: Tensor, q: Tensor, batch: ForwardBatch) -> Tensor:
        """Replace the rows of tokens that also attend to later tokens of their image."""
        if batch.multimodal is not None and batch.kv is not None:
            for image in batch.multimodal.bidirectional_images:
                rows = slice(image.row, image.row + image.count)
                attended[rows] = attend_bidirectional_images(self, q[rows], batch, batch.kv, image)
        return attended


def attend_bidirectional_images(
    layer: Attention, q: Tensor, batch: ForwardBatch, kv: KVPool, image: BidirectionalImage
) -> Tensor:
    """Return the attention of the queries ``q`` ``[count, heads, dim]`` of an image.

    They attend to the tokens before the image, at most the window, and to all of the image. The image's keys and values
    are in the pool already.
    """
    assert layer.softcap is None and not kv.values_in_keys, (
        "images with bidirectional attention need a model without softcap and with separate values"
    )
    window = None if layer.window is None or layer.window > image.position + image.count else layer.window
    start = 0 if window is None else max(0, image.position - window + 1)
    slots = batch.tables[image.sequence, start : image.position + image.count]
    k = widened(kv.k[layer.index].index_select(0, slots), q.dtype, kv.k_scale[layer.index])
    v = widened(kv.v[layer.index].index_select(0, slots), q.dtype, kv.v_scale[layer.index])
    mask = None
    if window is not None:
        positions = torch.arange(start, image.position + image.count, device=q.device)
        mask = positions > positions[image.position - start :, None] - window
    q, k, v = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=layer.scale, enable_gqa=True)
    return attended[0].transpose(0, 1)


def _own_method(backend: AttentionBackend, capability: type, name: str) -> Callable[..., Any] | None:
    """Return the method ``name`` of a backend, unless it is that of a base class whose ``run`` a subclass replaced."""
    if not isinstance(backend, capability):
        return None
    owner = next(base for base in type(backend).__mro__ if "run" in vars(base))
    method: Callable[..., Any] | None = getattr(backend, name) if name in vars(owner) else None
    return method if issubclass(owner, capability) else None
