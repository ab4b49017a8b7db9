"""The contracts of checkpoint readers and weight loaders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from sglang_plug.contracts.model.pooling import Pooling

if TYPE_CHECKING:
    from torch import Tensor

    from sglang_plug.contracts.model.model import Model


KVPart = Literal["k", "v"]
"""The part of the KV pool that a scale applies to: keys or values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVScaleTensor:
    """A scalar tensor of a checkpoint that holds a scale of an FP8 KV pool."""

    layer: str
    """The checkpoint's name of the attention module: ``model.layers.0.self_attn``."""
    parts: tuple[KVPart, ...]
    """The parts that it scales; empty: a part that the pool does not store, such as queries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest:
    """The arguments of a checkpoint reader."""

    source: str
    """A local file or folder, or a hub id."""
    revision: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    weights: bool = True
    """False if no weights will be read (``--load-format dummy``); the weight files may then be missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model's opened files: the configuration is loaded, the weights are still on disk."""

    source: str
    path: Path
    """The folder of the checkpoint; its file, if the format consists of one."""
    config: Any
    """The contents of ``config.json`` as attributes, with the defaults of the model's family."""
    generation: Mapping[str, Any] = field(default_factory=dict)
    """The contents of ``generation_config.json``."""
    pooling: Pooling | None = None
    """The pooling that the checkpoint defines, if any."""
    kv_dtype: str | None = None
    """The dtype that the checkpoint defines for keys and values, named as by ``--kv-cache-dtype``, if any."""
    kv_scale: Callable[[str], KVScaleTensor | None] | None = None
    """A function from a tensor's name to the scale of the KV pool that it holds; ``None``: it is a weight."""

    @property
    def architecture(self) -> str:
        """The first of the configuration's ``architectures``, or an empty string."""
        names = getattr(self.config, "architectures", None) or ("",)
        return str(names[0])


class CheckpointReader(Protocol):
    """Finds and opens a checkpoint. Raises ``CheckpointNotFoundError``, or ``ConfigError`` if it is unreadable."""

    def __call__(self, request: CheckpointRequest) -> Checkpoint:
        """Open the checkpoint ``request.source``."""


class WeightLoader(Protocol):
    """Streams a checkpoint's tensors, one at a time."""

    def __call__(self, checkpoint: Checkpoint, model: Model) -> Iterable[tuple[str, Tensor]]:
        """Yield pairs of checkpoint name and tensor on the host. Only the random loader reads ``model``."""
