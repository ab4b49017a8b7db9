"""The tensors of one step, and the pool that keys and values live in."""

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
    from .recurrent import Recurrent


@dataclass(frozen=True, slots=True)
class KVScale:
    """How much a unit of an FP8 KV pool counts in one layer: what is kept is what was computed, divided by it."""

    k: float = 1.0
    v: float = 1.0


class KVPool:
    """Keys and values of every layer, one row per KV slot.

    ``k[layer]`` is ``[slots, kv_heads, dim]`` and ``v[layer]`` is ``[slots, kv_heads, value_dim]``. Slot 0 is a
    spare that no sequence owns: padding may read and write it. With ``values_in_keys``, ``v[layer]`` is a view of
    the first ``value_dim`` numbers of ``k[layer]``.

    The pool may be of another dtype than the model: a layer's keys are what it holds times ``k_scale[layer]``, its
    values times ``v_scale[layer]``. Both are numbers on the host, which only change while no step is computed; with
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
        """A pool of ``slots`` rows for a model's geometry, in ``dtype`` unless ``shape`` names another."""
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

    def use_scales(self, scales: Mapping[int, KVScale]) -> None:
        """Let units count ``scales`` by layer, and one where there is none. What is kept already is not converted.

        Only a pool in FP8 has units of its own: any other keeps them at one.
        """
        for layer, keys in enumerate(self.k):
            scale = scales.get(layer, KVScale()) if keys.dtype.itemsize == 1 else KVScale()
            self.k_scale[layer] = scale.k
            self.v_scale[layer] = scale.k if self.values_in_keys else scale.v

    def store(self, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """Write ``k`` ``[T, kv_heads, dim]`` and ``v`` ``[T, kv_heads, value_dim]`` to ``slots`` ``[T]``.

        In a pool of another dtype they are divided by the layer's scales, and clamped to what the dtype holds.
        """
        _write(self.k[layer], k, self.k_scale[layer], slots)
        if not self.values_in_keys:
            _write(self.v[layer], v, self.v_scale[layer], slots)


def narrowed(x: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """``x / scale`` in ``dtype``; what is beyond its greatest number, infinity too, becomes that number."""
    most = torch.finfo(dtype).max
    return (x.float() * (1 / scale)).clamp_(-most, most).to(dtype)


def widened(x: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """What ``narrowed`` made of numbers of ``dtype``, as such again; ``x`` itself if it is of that dtype."""
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
    """Zeros. On the host, memory that the system zeroes and hands out page by page when it is first written to."""
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
class SeenWhole:
    """Tokens of one image in a step of which each sees all, of models that ask for it (``Seeing.sees_whole``)."""

    sequence: int
    """Which of the step's."""
    row: int
    """The first of its tokens in the step."""
    place: int
    """The first of its tokens in the sequence."""
    count: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What stands in the place of embeddings, in a step that computes places of images."""

    rows: Tensor
    """``[S]`` int64: which of the step's tokens."""
    states: Tensor
    """``[S, hidden]``, in the model's dtype or, of states that a caller gave, float32; ``[S, n, hidden]`` of models
    that add further ones between layers."""
    coordinates: Tensor | None = None
    """``[R, T]`` int64: positions of all the step's tokens, for models with several for each; as
    ``Seeing.coordinates``."""
    whole: tuple[SeenWhole, ...] = ()
    """Images whose tokens see each other."""

    def into(self, embedded: Tensor) -> Tensor:
        """``[T, hidden]`` with these states in their rows, the first ones where there are several."""
        states = self.states if self.states.dim() == 2 else self.states[:, 0]
        return embedded.index_copy(0, self.rows, states.to(embedded.dtype))

    def onto(self, hidden: Tensor, index: int) -> Tensor:
        """``[T, hidden]`` with the further states ``index``, from 1 on, added to their rows."""
        return hidden.index_add(0, self.rows, self.states[:, index])


@dataclass(slots=True)
class ForwardBatch:
    """One step: ``T`` new tokens of ``B`` sequences, which lie one after the other.

    A sequence's context (``kv_lens``) may exceed its new tokens (``query_lens``): the rest is in the KV pool
    already. Encoders have no pool: ``kv`` is ``None`` and the two lengths are equal.
    """

    input_ids: Tensor
    """``[T]`` int64."""
    positions: Tensor
    """``[T]`` int64, the place of each new token in its sequence, unless the model gives images fewer positions."""
    slots: Tensor
    """``[T]`` int64, where this step's keys and values go."""
    tables: Tensor
    """``[B, longest]`` int64, slots of each sequence's whole context, padded with 0."""
    query_lens: list[int]
    """``[B]`` on the host."""
    kv_lens: list[int]
    """``[B]`` on the host, this step's tokens included."""
    page_size: int = 1
    """Aligned runs of ``page_size`` entries of ``tables`` are aligned runs of slots."""
    kv: KVPool | None = None
    seen: Seen | None = None
    """Set if some of the tokens stand for images."""
    recurrent: Recurrent | None = None
    """Set if the model has recurrent states."""
    plan: Any = None
    """Belongs to the attention backend."""
