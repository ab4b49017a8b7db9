"""Small contracts: schedule policies, checkpoint readers and weight loaders, observers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from .cache import Match

if TYPE_CHECKING:
    from torch import Tensor

    from .model import Model


class Waiting(Protocol):
    """A sequence in the queue, as a schedule policy sees it."""

    @property
    def tokens(self) -> Sequence[int]:
        """The prompt, and what was generated before a retraction."""

    @property
    def priority(self) -> int:
        """As in the request; higher is more urgent."""

    @property
    def arrived(self) -> float:
        """When the request reached the server, ``time.time()``."""


class SchedulePolicy(Protocol):
    """The order in which waiting sequences are admitted."""

    def order(self, waiting: Sequence[Waiting], match: Callable[[Waiting], Match]) -> Sequence[Waiting]:
        """The same sequences, first to admit first. ``match`` looks a sequence up in the prefix cache."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Projection:
    """A matrix that a pooled vector is multiplied with: ``activation(weight @ x + bias)``, in float32."""

    weight: Tensor
    """``[out, in]``."""
    bias: Tensor | None = None
    activation: Callable[[Tensor], Tensor] | None = None


PoolingMode = Literal["last", "cls", "mean", "max", "mean_sqrt_len", "weighted_mean"]
"""Of a prompt's states: the last; the first; their mean; of each number the greatest; their sum by the square root of
their count; their mean where the first counts one, the second two, and so on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooling:
    """How the hidden states of a prompt become one vector."""

    mode: PoolingMode = "last"
    normalize: bool = True
    """Divide by the Euclidean length, at last."""
    projections: tuple[Projection, ...] = ()
    """What the vector goes through before, in order."""

    def to(self, device: Any) -> Pooling:
        """The same with its matrices on ``device``."""
        moved = (
            replace(one, weight=one.weight.to(device), bias=None if one.bias is None else one.bias.to(device))
            for one in self.projections
        )
        return replace(self, projections=tuple(moved))


KVPart = Literal["k", "v"]
"""Keys or values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVScaleTensor:
    """A tensor of a checkpoint that holds one number: how much a unit of an FP8 KV pool counts."""

    layer: str
    """What the checkpoint calls the module that attends: ``model.layers.0.self_attn``."""
    parts: tuple[KVPart, ...]
    """Whose units; empty: of something that no pool keeps, such as queries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest:
    """What a checkpoint reader is asked for."""

    source: str
    """A local folder or a hub id."""
    revision: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    weights: bool = True
    """False if no weights will be read (``--load-format dummy``): they need not be there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model's files, opened: configuration as attributes, weights still on disk."""

    source: str
    path: Path
    config: Any
    """Attribute access to ``config.json`` with the family's defaults filled in."""
    generation: Mapping[str, Any] = field(default_factory=dict)
    """``generation_config.json``."""
    pooling: Pooling | None = None
    """How the checkpoint says that prompts become embeddings, if it does."""
    kv_dtype: str | None = None
    """What the checkpoint says that keys and values are kept in, named as by ``--kv-cache-dtype``, if it does."""
    kv_scale: Callable[[str], KVScaleTensor | None] | None = None
    """What the tensor of a name says about the KV pool; ``None``: that it is a weight."""

    @property
    def architecture(self) -> str:
        """``architectures[0]``, or an empty string."""
        names = getattr(self.config, "architectures", None) or ("",)
        return str(names[0])


class CheckpointReader(Protocol):
    """Finds and opens a checkpoint. Raises ``CheckpointNotFoundError``, or ``ConfigError`` if it is unreadable."""

    def __call__(self, request: CheckpointRequest) -> Checkpoint:
        """Open ``request.source``."""


class WeightLoader(Protocol):
    """Streams a checkpoint's tensors, one at a time."""

    def __call__(self, checkpoint: Checkpoint, model: Model) -> Iterable[tuple[str, Tensor]]:
        """Pairs of checkpoint name and tensor on the host; only the random loader looks at ``model``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """One step of the engine, as observers see it."""

    time: float
    """``time.time()`` at the end of the step."""
    seconds: float
    prefill_sequences: int
    prefill_tokens: int
    cached_tokens: int
    """Prompt tokens of sequences admitted in this step that came from the prefix cache."""
    decode_sequences: int
    running: int
    waiting: int
    used_slots: int
    """KV slots that running sequences hold."""
    cached_slots: int
    free_slots: int
    capacity: int
    retracted: int
    forced_tokens: int = 0
    """Output tokens that constraints left no choice about: as many steps less."""
    drafted_tokens: int = 0
    """Guesses of output tokens that the step computed."""
    accepted_tokens: int = 0
    """Those that came true: as many steps less."""
    queue_seconds: tuple[float, ...] = ()
    """From arrival to this step, of each request whose computation it began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEvent:
    """A request's end, as observers see it. Times are ``time.time()``."""

    id: str
    reason: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    arrived: float
    first_token: float | None
    finished: float
    request: str = ""
    """What the caller calls the request that this is one sequence of; empty: ``id``."""


class Observer:
    """Watches the server from the API process. Every method does nothing by default; none may block."""

    def on_start(self, info: Mapping[str, Any]) -> None:
        """The engine is ready; ``info`` is what ``/server_info`` reports."""

    def on_request(self, event: RequestEvent) -> None:
        """A request ended."""

    def on_tokens(self, request: str, tokens: int, time: float) -> None:
        """A request got ``tokens`` new tokens."""

    def on_step(self, stats: StepStats) -> None:
        """The engine finished a step."""

    def on_stop(self) -> None:
        """The server stops."""
