"""What a plugin may declare. Torch-free: every process and every ``--help`` imports this module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from .grammar import CONSTRAINT_KINDS, ConstraintKind

Task = Literal["generate", "embed", "classify", "rerank"]
Auth = Literal["public", "user", "admin"]

ANY_DEVICE: frozenset[str] = frozenset({"any"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A named component and where to find it.

    ``target`` is ``"package.module:attribute"`` and is imported only when the component is selected, so a
    module that declares specs must not import torch or any other heavy library.
    """

    kind: ClassVar[str]

    name: str
    target: str
    summary: str = ""
    """One line for ``plugins list`` and ``--help``."""
    settings: str | None = None
    """``"package.module:Dataclass"``: the component's own options, set with ``--set name.key=value``."""
    needs: tuple[str, ...] = ()
    """Importable module names without which the component is listed as unavailable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec(Spec):
    """A model class; ``name`` is the checkpoint's ``architectures[0]``. Target: a ``Model`` subclass."""

    kind: ClassVar[str] = "model"

    tasks: frozenset[Task] = frozenset({"generate"})
    causal: bool = True
    """False for encoders: no KV pool, no prefix cache, no chunking."""
    generic: bool = False
    """True if it serves architectures other than its name; it is used where ``--model-impl`` names it, or where a
    plugin chooses it for an architecture that nobody declares."""
    inputs: frozenset[str] = frozenset({"text"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec(Spec):
    """An attention backend. Target: an ``AttentionBackend`` subclass."""

    kind: ClassVar[str] = "attention"

    devices: frozenset[str] = ANY_DEVICE
    """Device types it runs on, or ``{"any"}``."""
    graphs: bool = False
    """True if the target also implements ``GraphCapable``."""
    kv_dtypes: frozenset[str] = frozenset()
    """Dtypes of a KV pool that it reads besides the model's own, as ``--kv-cache-dtype`` names them (``fp8_e4m3``,
    ``bfloat16``); ``AttentionShape.kv_dtype`` tells it which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSpec(Spec):
    """A set of kernels. Target: a ``Kernels`` instance, or a function without arguments that returns one."""

    kind: ClassVar[str] = "kernels"

    devices: frozenset[str] = ANY_DEVICE


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationSpec(Spec):
    """A way to keep matrices in fewer bits. Target: a function ``(QuantizationRequest, settings) -> Quantization``,
    which raises ``ConfigError`` for a checkpoint, dtype or device that it does not support."""

    kind: ClassVar[str] = "quantization"

    devices: frozenset[str] = ANY_DEVICE


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCacheSpec(Spec):
    """A prefix cache. Target: a ``PrefixCache`` subclass."""

    kind: ClassVar[str] = "prefix-cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionSpec(Spec):
    """An eviction policy. Target: a class with ``rank(node)``."""

    kind: ClassVar[str] = "eviction"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSpec(Spec):
    """A schedule policy. Target: a class with ``order(waiting, cache)``."""

    kind: ClassVar[str] = "schedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec(Spec):
    """A checkpoint reader. Target: a function ``(CheckpointRequest) -> Checkpoint``."""

    kind: ClassVar[str] = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSpec(Spec):
    """A weight loader. Target: a function ``(Checkpoint, Model) -> iterable of (name, tensor)``."""

    kind: ClassVar[str] = "weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSpec(Spec):
    """A tokenizer. Target: a function ``(TokenizerSource) -> Tokenizer``."""

    kind: ClassVar[str] = "tokenizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarSpec(Spec):
    """A backend of structured outputs. Target: a ``GrammarBackend`` subclass."""

    kind: ClassVar[str] = "grammar"

    forms: frozenset[ConstraintKind] = frozenset(CONSTRAINT_KINDS)
    """Kinds of constraints that it can enforce at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolParserSpec(Spec):
    """A format in which models call functions. Target: an ``OutputParser`` subclass."""

    kind: ClassVar[str] = "tool-parser"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningParserSpec(Spec):
    """A format in which models think aloud. Target: an ``OutputParser`` subclass."""

    kind: ClassVar[str] = "reasoning-parser"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSpec(Spec):
    """A group of HTTP routes. Target: ``build(engine) -> fastapi.APIRouter``."""

    kind: ClassVar[str] = "route"

    auth: Auth = "user"
    tasks: frozenset[Task] = frozenset()
    """Mounted only if the model can do one of these; empty: always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec(Spec):
    """A subcommand. Target: an object with ``arguments(parser, plugins)`` and ``run(options, plugins)``."""

    kind: ClassVar[str] = "command"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverSpec(Spec):
    """Watches requests and steps from the API process. Target: an ``Observer`` subclass."""

    kind: ClassVar[str] = "observer"

    enabled: bool = True
    """Loaded unless blocked; an observer with ``enabled=False`` is loaded only when named by ``--observer``."""
