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

from .batch import ForwardBatch, KVPool, SeenWhole, widened
from .config import ConfigError

if TYPE_CHECKING:
    from .model import BuildEnv


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """What a backend and the KV pool must know before they see a batch; per rank."""

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
    """Of the KV pool; ``None``: the model's. Another is given only to backends that declare it
    (``AttentionSpec.kv_dtypes``)."""
    sinks: bool = False
    """Some layers have attention sinks, which takes a backend that is ``WeighingCapable``."""

    def of_rank(self, size: int) -> AttentionShape:
        """What each of ``size`` ranks has of the heads of this model.

        Raises ``ConfigError`` if they cannot be shared.
        """
        if self.heads % size or (self.kv_heads % size and size % self.kv_heads):
            raise ConfigError(
                f"--tp-size {size}: the model's {self.heads} attention heads, {self.kv_heads} of them with keys and "
                "values, cannot be shared evenly; choose a number that divides both"
            )
        return replace(self, heads=self.heads // size, kv_heads=max(1, self.kv_heads // size))

    @property
    def pooled(self) -> int:
        """Numbers that one layer keeps of one token."""
        values = 0 if self.values_in_keys else self.value_dim or self.dim
        return self.kv_heads * (self.dim + values)


Weighed = tuple[Tensor, Tensor]
"""Attention ``[T, heads, value_dim]``, and for each of its queries ``[T, heads]`` float32 the logarithm of the sum of
the exponentials of its logits, scaled and capped."""


class AttentionBackend(ABC):
    """Stores this step's keys and values and attends over each sequence's whole context.

    Holds no batch: what ``run`` needs is left by ``plan`` in ``batch.plan``, so two batches may be in flight.
    """

    def __init__(self, shape: AttentionShape, device: torch.device, settings: Any = None) -> None:
        self.shape, self.device, self.settings = shape, device, settings

    @abstractmethod
    def plan(self, batch: ForwardBatch) -> None:
        """Called once per step, before the model. May leave anything in ``batch.plan``."""

    @abstractmethod
    def run(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        """Called once per layer.

        ``q`` is ``[T, heads, dim]``, ``k`` ``[T, kv_heads, dim]``, ``v`` ``[T, kv_heads, value_dim]``; the result
        ``[T, heads, value_dim]``. New token ``i`` of a sequence sees the context up to itself if
        ``layer.causal``, at most the last ``layer.window`` tokens if that is set. With ``shape.values_in_keys``,
        ``v`` is ``k[..., :value_dim]``, and ``batch.kv.v`` are views of ``batch.kv.k``. With ``shape.kv_dtype``,
        what the pool holds counts ``batch.kv.k_scale`` and ``v_scale`` of the layer.
        """


class StoredCapable(ABC):
    """Optional second base of a backend that can leave storing to the kernel that rotates (``Kernels.rope_store``)."""

    @abstractmethod
    def run_stored(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        """As ``AttentionBackend.run``, where ``batch.kv`` already holds this step's ``k`` and ``v``."""


class WeighingCapable(ABC):
    """Optional second base of a backend that can tell how much each query's attention weighs, which sinks need."""

    @abstractmethod
    def run_weighed(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Weighed:
        """As ``AttentionBackend.run``, with the weights."""


class GraphCapable(ABC):
    """Optional second base of a backend whose decode steps can be captured, as CUDA graphs or by its own recorder."""

    @abstractmethod
    def static_plan(self, batch: ForwardBatch) -> None:
        """Before capture, for one padded batch size: plan with tensors that stay where they are."""

    @abstractmethod
    def refresh(self, batch: ForwardBatch) -> None:
        """Before each replay: bring the static plan up to date in place.

        The replay before may still be running. Change what it reads by work that is queued on the device, and from host
        memory that the device is not still to read.
        """

    def recorder(self) -> GraphRecorder | None:
        """What captures the steps; ``None``: CUDA graphs, which only CUDA has."""
        return None


class CannotCaptureError(RuntimeError):
    """Work does what a recorder cannot do again; the message says what."""


class GraphRecorder(ABC):
    """Captures a decode step's work, so that it can be done again in one go on the same tensors."""

    name: str = "decode graph"
    """What the log calls one."""
    warm_ups: int = 1
    """Runs before a capture: libraries make their handles and choose their kernels, backends meet every layer."""
    exact: bool = True
    """Replays are the same as runs to the last bit, and a capture may miss what is computed in Python: each is compared
    once with a run on other inputs, and given up where they differ."""

    @abstractmethod
    def sizes(self, most: int) -> list[int]:
        """Batch sizes to capture, ascending, none beyond ``most``; a step runs in the next larger one, padded."""

    def begin(self) -> None:  # noqa: B027 (optional)
        """Before a model's captures: those of the model before it are forgotten."""

    @abstractmethod
    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Do ``work`` while recording it; the result does it again.

        Raises ``CannotCaptureError`` if that is not possible.
        """

    def exchange(self, call: Callable[[], None]) -> None:
        """While ``work`` is captured: make ``call``, by which ranks that share the model exchange tensors, and let
        replays make it again. Raises ``CannotCaptureError`` if that is not possible."""
        raise CannotCaptureError(f"several ranks share the model, and a {self.name} cannot wait for the others")

    @abstractmethod
    def free_bytes(self) -> int:
        """Memory left on the device."""


class Attention(nn.Module):
    """One layer's attention: holds no weights, no cache and no batch.

    ``fuses_rope`` tells whether ``rotary`` rotates and stores in one kernel.

    Args:
        env: the surroundings the model is built in.
        index: the layer's row in the KV pool.
        scale: factor on the query-key products.
        causal: whether a token may not see later ones.
        window: how many tokens, itself included, a token sees; ``None``: all.
        softcap: logits are ``softcap * tanh(logits / softcap)``; ``None``: not capped.
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
        self._rope_store = self._run_stored = None
        run_stored = None if env.attention.shape.values_in_keys else _own(env.attention, StoredCapable, "run_stored")
        if run_stored is not None:
            self._rope_store, self._run_stored = env.kernels.rope_store, run_stored
        self.fuses_rope = self._rope_store is not None
        self._run_weighed = _own(env.attention, WeighingCapable, "run_weighed")
        if self._run_weighed is None and env.attention.shape.sinks:
            raise ConfigError(
                f"the model has attention sinks, which {type(env.attention).__name__} does not do; "
                "use --attention-backend torch or triton"
            )

    @contextmanager
    def attending_by(self, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
        """Inside, attend by what ``around`` makes of ``AttentionBackend.run``, and of the backend's other ways."""
        before = self._run, self._run_stored, self._run_weighed
        run, stored, weighed = before
        self._run = around(run)
        self._run_stored = None if stored is None else around(stored)
        self._run_weighed = None if weighed is None else around(weighed)
        try:
            yield
        finally:
            self._run, self._run_stored, self._run_weighed = before

    def forward(self, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        """``[T, heads, dim]``, ``[T, kv_heads, dim]``, ``[T, kv_heads, value_dim]`` to ``[T, heads, value_dim]``."""
        return self._with_whole(self._run(self, q, k, v, batch), q, batch)

    def with_sinks(self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, batch: ForwardBatch) -> Tensor:
        """As ``forward``, where every query of a head also sees a token without a value whose logit is the head's of
        ``sinks`` ``[heads]``: what goes to it is lost to the others (Xiao et al., 2023). The model's
        ``AttentionShape`` says that it has ``sinks``."""
        assert self._run_weighed is not None, "the model's AttentionShape does not say that it has sinks"
        found, weights = self._run_weighed(self, q, k, v, batch)
        return found * torch.sigmoid(weights - sinks.float())[..., None].to(found.dtype)

    def rotary(self, q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, batch: ForwardBatch) -> Tensor:
        """As ``forward``, of ``q`` and ``k`` that are still to be rotated by ``cos``/``sin`` ``[T, width]``.

        Not for models whose values are a part of their keys.
        """
        if self._rope_store is None or self._run_stored is None or batch.kv is None:
            q, k = self._rope(q, cos, sin).to(q.dtype), self._rope(k, cos, sin).to(k.dtype)
            return self.forward(q, k, v, batch)
        q, k = self._rope_store(q, k, v, cos, sin, batch.kv, self.index, batch.slots)
        return self._with_whole(self._run_stored(self, q, k, v, batch), q, batch)

    def _with_whole(self, found: Tensor, q: Tensor, batch: ForwardBatch) -> Tensor:
        """``found`` with what the tokens of images see that see each other, which is more than what came before."""
        if batch.seen is not None and batch.kv is not None:
            for image in batch.seen.whole:
                rows = slice(image.row, image.row + image.count)
                found[rows] = see_whole(self, q[rows], batch, batch.kv, image)
        return found


def see_whole(layer: Attention, q: Tensor, batch: ForwardBatch, kv: KVPool, image: SeenWhole) -> Tensor:
    """Attention of the queries ``q`` ``[count, heads, dim]`` of an image over what came before, at most the window, and
    all of the image; its keys and values are in the pool already."""
    assert layer.softcap is None and not kv.values_in_keys, "no model that sees images whole has these"
    window = None if layer.window is None or layer.window > image.place + image.count else layer.window
    start = 0 if window is None else max(0, image.place - window + 1)
    slots = batch.tables[image.sequence, start : image.place + image.count]
    k = widened(kv.k[layer.index].index_select(0, slots), q.dtype, kv.k_scale[layer.index])
    v = widened(kv.v[layer.index].index_select(0, slots), q.dtype, kv.v_scale[layer.index])
    mask = None
    if window is not None:
        places = torch.arange(start, image.place + image.count, device=q.device)
        mask = places > places[image.place - start :, None] - window
    q, k, v = (one.transpose(0, 1)[None] for one in (q, k, v))
    found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=layer.scale, enable_gqa=True)
    return found[0].transpose(0, 1)


def _own(backend: AttentionBackend, capability: type, name: str) -> Callable[..., Any] | None:
    """The method ``name`` of a backend that has it; not that of a base class whose ``run`` a subclass replaced."""
    if not isinstance(backend, capability):
        return None
    owner = next(one for one in type(backend).__mro__ if "run" in vars(one))
    found: Callable[..., Any] | None = getattr(backend, name) if name in vars(owner) else None
    return found if issubclass(owner, capability) else None
