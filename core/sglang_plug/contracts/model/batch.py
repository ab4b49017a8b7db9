"""The tensors of one step, and the pool that holds keys and values."""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .attention import AttentionShape
    from .recurrent_state import RecurrentInputs


@dataclass(frozen=True, slots=True)
class KVScale:
    """The scales of an FP8 KV pool in one layer: the pool holds each key and value divided by its scale."""

    k: float = 1.0
    v: float = 1.0


class KVPool:
    """Keys and values of every layer, one row per KV slot.

    ``k[layer]`` is ``[slots, kv_heads, dim]`` and ``v[layer]`` is ``[slots, kv_heads, value_dim]``. No sequence owns
    slot 0: padding may read and write it. With ``values_in_keys``, ``v[layer]`` is a view of the first ``value_dim``
    numbers of ``k[layer]``.

    The pool may have another dtype than the model: a layer's keys are the stored numbers times ``k_scale[layer]``, its
    values those times ``v_scale[layer]``. Both scales are numbers on the host and change only between steps; with
    ``values_in_keys`` they are equal.
    """

    def __init__(
        self,
        *,
        layers: int,
        slots: int,
        kv_heads: int,
        dim: int,
        value_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        values_in_keys: bool = False,
    ) -> None:
        self.slots, self.values_in_keys = slots, values_in_keys
        self.k_scale, self.v_scale = [1.0] * layers, [1.0] * layers
        self.k = [zeros((slots, kv_heads, dim), dtype, device) for _ in range(layers)]
        if values_in_keys:
            self.v = [keys[..., :value_dim] for keys in self.k]
        else:
            self.v = [zeros((slots, kv_heads, value_dim), dtype, device) for _ in range(layers)]

    @classmethod
    def of(cls, shape: AttentionShape, *, slots: int, dtype: torch.dtype, device: torch.device) -> Self:
        """Build a pool of ``slots`` rows for a model's geometry, in ``dtype`` unless ``shape`` names another."""
        return cls(
            layers=shape.layers,
            slots=slots,
            kv_heads=shape.kv_heads,
            dim=shape.dim,
            value_dim=shape.value_dim or shape.dim,
            dtype=shape.kv_dtype or dtype,
            device=device,
            values_in_keys=shape.values_in_keys,
        )

    @property
    def parts(self) -> list[Tensor]:
        """The tensors that own the memory, layer after layer: the keys, then the values unless these are views."""
        if self.values_in_keys:
            return list(self.k)
        return [part for layer in zip(self.k, self.v, strict=True) for part in layer]

    def use_scales(self, scales: Mapping[int, KVScale]) -> None:
        """Use ``scales`` by layer, and scale 1 for layers without one. Stored keys and values are not converted.

        Only an FP8 pool is scaled: in any other pool all scales stay 1.
        """
        for layer, keys in enumerate(self.k):
            scale = scales.get(layer, KVScale()) if keys.dtype.itemsize == 1 else KVScale()
            self.k_scale[layer] = scale.k
            self.v_scale[layer] = scale.k if self.values_in_keys else scale.v

    def store(self, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """Write ``k`` ``[T, kv_heads, dim]`` and ``v`` ``[T, kv_heads, value_dim]`` to ``slots`` ``[T]``.

        If the pool has another dtype, they are divided by the layer's scales and clamped to the range of that dtype.
        """
        _write(self.k[layer], k, self.k_scale[layer], slots)
        if not self.values_in_keys:
            _write(self.v[layer], v, self.v_scale[layer], slots)


def narrowed(x: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """Return ``x / scale`` in ``dtype``; numbers beyond the dtype's range, and infinities, become its limits."""
    limit = torch.finfo(dtype).max
    return (x.float() * (1 / scale)).clamp_(-limit, limit).to(dtype)


def widened(x: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """Convert numbers that ``narrowed`` returned back to ``dtype``; return ``x`` itself if it has that dtype."""
    if x.dtype == dtype:
        return x
    return x.to(dtype) if scale == 1.0 else (x.float() * scale).to(dtype)


def _write(pool: Tensor, x: Tensor, scale: float, slots: Tensor) -> None:
    if x.dtype != pool.dtype:
        x = narrowed(x, pool.dtype, scale)
        if pool.dtype.itemsize == 1:  # torch copies rows of float8 on few devices
            pool, x = pool.view(torch.uint8), x.view(torch.uint8)
    pool.index_copy_(0, slots, x)


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros; on the host in memory that the system zeroes and allocates by page at the first write."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = max(1, math.prod(shape)) * dtype.itemsize
    if sys.platform == "win32":
        memory = mmap.mmap(-1, size)
    else:  # shared memory, the default, does not get huge pages
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype, count=math.prod(shape)).view(shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class BidirectionalImage:
    """An image whose tokens in a step attend to each other, for models with ``bidirectional_images``."""

    sequence: int
    """Index of its sequence in the step."""
    row: int
    """Index of its first token in the step."""
    position: int
    """Position of its first token in the sequence."""
    count: int


@dataclass(frozen=True, slots=True)
class MultimodalInputs:
    """The embeddings that replace those of tokens in a step that computes tokens of images, or input embeddings."""

    rows: Tensor
    """``[S]`` int64: the indices of these tokens in the step."""
    states: Tensor
    """The embeddings: ``[S, hidden]`` in the model's dtype, or float32 for input embeddings of a request;
    ``[S, 1 + n, hidden]`` for models with ``n`` DeepStack embeddings."""
    mrope_positions: Tensor | None = None
    """``[R, T]`` int64: M-RoPE position ids of all the step's tokens, from ``SupportsImages.mrope_positions``; ``None``
    for models without M-RoPE."""
    bidirectional_images: tuple[BidirectionalImage, ...] = ()
    """Images whose tokens attend to each other."""

    def merge_embeddings(self, embedded: Tensor) -> Tensor:
        """Return ``embedded`` ``[T, hidden]`` with the embeddings in their rows, without DeepStack embeddings."""
        states = self.states if self.states.dim() == 2 else self.states[:, 0]
        return embedded.index_copy(0, self.rows, states.to(embedded.dtype))

    def add_deepstack(self, hidden: Tensor, index: int) -> Tensor:
        """Return ``hidden`` ``[T, hidden]`` with the DeepStack embeddings ``index``, from 1 on, added to their rows."""
        return hidden.index_add(0, self.rows, self.states[:, index])


@dataclass(slots=True)
class ForwardBatch:
    """One step: ``T`` new tokens of ``B`` sequences, which lie one after the other.

    A sequence's context (``kv_lens``) may be longer than its new tokens (``query_lens``): the earlier tokens are in the
    KV pool already. Encoders have no pool: ``kv`` is ``None`` and the two lengths are equal. A model may replace
    tensors of a batch but does not write to them.
    """

    input_ids: Tensor
    """``[T]`` int64."""
    positions: Tensor
    """``[T]`` int64, the index of each new token in its sequence, unless the model gives images fewer positions."""
    slots: Tensor
    """``[T]`` int64, the slots that this step's keys and values are written to."""
    tables: Tensor
    """``[B, longest]`` int64, slots of each sequence's whole context, padded with 0."""
    query_lens: list[int]
    """``[B]`` on the host: number of new tokens of each sequence."""
    kv_lens: list[int]
    """``[B]`` on the host: length of each sequence's context, this step's tokens included."""
    page_size: int = 1
    """Aligned runs of ``page_size`` entries of ``tables`` are aligned runs of slots."""
    kv: KVPool | None = None
    multimodal: MultimodalInputs | None = None
    """Set if the step computes tokens of images."""
    recurrent: RecurrentInputs | None = None
    """Set if the model has recurrent states."""
    output_rows: list[int] | None = None
    """Ascending rows of ``T`` whose hidden states are read; the others may have any values. ``None``: all are read."""
    plan: Any = None
    """Data of the attention backend."""
