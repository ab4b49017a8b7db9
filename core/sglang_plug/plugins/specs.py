"""Specs: the components that a plugin may declare. Torch-free: every process and every ``--help`` imports this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sglang_plug.contracts.request import Task
from sglang_plug.contracts.sampling_params import PROCESSED_PARAMS
from sglang_plug.contracts.text.grammar import CONSTRAINT_KINDS, ConstraintKind

from .spec import ANY_DEVICE, EXTENSION_FIELDS, Auth, Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec(Spec):
    """A model class; ``name`` is the checkpoint's ``architectures[0]``. Target: a ``Model`` subclass, whose
    attribute ``settings`` are its settings."""

    kind: ClassVar[str] = "model"

    tasks: frozenset[Task] = frozenset({"generate"})
    causal: bool = True
    """False for encoders: no KV pool, no prefix cache, no chunking."""
    generic: bool = False
    """True if it serves architectures other than its name; it is used where ``--model-impl`` names it, or where a
    plugin chooses it for an architecture that nobody declares."""
    parallel: bool = False
    """True if several ranks can share it (``--tp-size``): its layers cut what belongs to one rank, and its head counts
    follow ``BuildEnv.ranks``."""
    inputs: frozenset[str] = frozenset({"text"})
    """Kinds of content that prompts may have. With ``"image"`` the target is a ``SupportsImages``, too, and a media
    processor must be declared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec(Spec):
    """An attention backend. Target: an ``AttentionBackend`` subclass, made with the shape, the device and its settings
    or ``None``."""

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
    """A set of kernels. Target: a ``Kernels`` instance, or a function that returns one, called with its settings, or
    with nothing if it has none."""

    kind: ClassVar[str] = "kernels"

    devices: frozenset[str] = ANY_DEVICE


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationSpec(Spec):
    """A quantization method. Target: a function ``(QuantizationRequest, settings) -> Quantization``,
    which raises ``ConfigError`` for a checkpoint, dtype or device that it does not support."""

    kind: ClassVar[str] = "quantization"

    devices: frozenset[str] = ANY_DEVICE


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCacheSpec(Spec):
    """A prefix cache. Target: a ``PrefixCache`` subclass; its settings, if it has any, are the last argument."""

    kind: ClassVar[str] = "prefix-cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionSpec(Spec):
    """An eviction policy. Target: a class that fulfils ``EvictionPolicy``, made with its settings, or with nothing if
    it has none."""

    kind: ClassVar[str] = "eviction"


@dataclass(frozen=True, slots=True, kw_only=True)
class KVStoreSpec(Spec):
    """A tier below the prefix cache. Target: a ``KVStore`` subclass, made with its settings, or with nothing if it has
    none."""

    kind: ClassVar[str] = "kv-store"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSpec(Spec):
    """A schedule policy. Target: a class that fulfils ``SchedulePolicy``, and ``AccountingPolicy`` and
    ``PreemptivePolicy`` optionally, made with its settings, or with nothing if it has none."""

    kind: ClassVar[str] = "schedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSpec(Spec):
    """Starts the ranks that share a model. Target: an ``Executor`` subclass, made with its settings or ``None``."""

    kind: ClassVar[str] = "executor"

    devices: frozenset[str] = ANY_DEVICE
    """Device types whose ranks it can bring together, or ``{"any"}``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentSpec(Spec):
    """Runs engines. Target: a function ``(EngineLaunch, settings) -> EngineClient``, called for each engine."""

    kind: ClassVar[str] = "deployment"

    in_process: bool = False
    """True if engines run in the API process, which then imports nothing else while they start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingSpec(Spec):
    """A routing policy. Target: a class with ``choose(request, replicas)``, made with its settings, or with nothing if
    it has none."""

    kind: ClassVar[str] = "routing"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSpec(Spec):
    """A drafter: proposes draft tokens. Target: a ``Drafter`` subclass, made with its settings, or with nothing if it
    has none."""

    kind: ClassVar[str] = "drafter"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepExtensionSpec(Spec):
    """A feature that takes part in the steps of the engine. Target: a function ``(ExtensionContext) -> StepExtension |
    None``; ``None`` if the configuration does not use the feature. The context has its settings."""

    kind: ClassVar[str] = "step-extension"

    before: tuple[str, ...] = ()
    """Names of extensions that come after this one at every extension point."""
    after: tuple[str, ...] = ()
    """Names of extensions that come before this one at every extension point."""
    serves: tuple[str, ...] = ()
    """Fields of ``Request`` that it serves, some of ``adapter``, ``constraint``, ``deadline``, ``media`` and
    ``reasoning_prefix``. Where nobody serves one, requests with it are refused."""
    request_fields: str | None = None
    """``"package.module:Dataclass"``: fields of requests, as those of a ``LogitsProcessorSpec``, which the extension
    reads with ``ExtensionContext.request_fields``. Where the extension is not used, requests with them are refused."""
    worker_ranks: bool = False
    """True if it is also built on worker ranks, for a model that several ranks share."""

    def __post_init__(self) -> None:
        """Check the fields like ``Spec.__post_init__``; also raise ``ValueError`` for an unknown request field."""
        Spec.__post_init__(self)
        for name in self.serves:
            if name not in EXTENSION_FIELDS:
                known = ", ".join(EXTENSION_FIELDS)
                raise ValueError(f"{type(self).__name__}({self.name!r}): serves must be some of {known}, not {name!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsProcessorSpec(Spec):
    """A logits processor. Target: a ``LogitsProcessor`` subclass, made with its settings or ``None``, the size of the
    vocabulary and the device of the logits. Every one that is not blocked is loaded where the model generates."""

    kind: ClassVar[str] = "logits-processor"

    request_fields: str | None = None
    """``"package.module:Dataclass"``: each of its fields is a field of requests, next to ``temperature`` (in
    ``sampling_params`` of ``/generate`` and of the offline engine). All have defaults. A dataclass or a
    ``msgspec.Struct``, whose module must not import torch."""
    sampling_params: tuple[str, ...] = ()
    """Parameters that every server knows and that this processor applies: some of ``logit_bias``, ``min_new_tokens``,
    ``frequency_penalty``, ``presence_penalty`` and ``repetition_penalty``. Where nobody applies one, requests that set
    it are refused. A processor that declares parameters or request fields is asked only by requests that set one."""
    order: int = 500
    """Processors run in ascending order, then by name. The built-in ones have 50 (``allowed-tokens``), 100
    (``logit-bias``), 200 (``penalties``) and 900 (``min-new-tokens``)."""

    def __post_init__(self) -> None:
        """Check the fields like ``Spec.__post_init__``; also raise ``ValueError`` for an unknown parameter."""
        Spec.__post_init__(self)
        for name in self.sampling_params:
            if name not in PROCESSED_PARAMS:
                known = ", ".join(PROCESSED_PARAMS)
                raise ValueError(
                    f"{type(self).__name__}({self.name!r}): sampling_params must be some of {known}, not {name!r}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSpec(Spec):
    """A format of adapters. Target: a function ``(AdapterRequest, settings) -> Adapter | None``, which is asked for
    every folder that is loaded and answers ``None`` for those of another format."""

    kind: ClassVar[str] = "adapter"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec(Spec):
    """A checkpoint reader. Target: a function ``(CheckpointRequest) -> Checkpoint``; its settings, if it has any, are
    the last argument."""

    kind: ClassVar[str] = "checkpoint"

    detects: str | None = None
    """``"package.module:function"``: ``(CheckpointRequest) -> bool``, whether it reads this source: a file, a folder, a
    hub id, or a path where there is nothing. It looks at names or first bytes, and imports nothing heavy. The reader is
    then chosen without ``--checkpoint-format``; two that recognise one source are an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSpec(Spec):
    """A weight loader. Target: a function ``(Checkpoint, Model) -> iterable of (name, tensor)``; its settings, if it
    has any, are the last argument."""

    kind: ClassVar[str] = "weights"

    detects: str | None = None
    """``"package.module:function"``: ``(Checkpoint) -> bool``, whether it loads the weights of this checkpoint; like
    ``CheckpointSpec.detects``, for ``--load-format``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSpec(Spec):
    """A tokenizer. Target: a function ``(TokenizerSource) -> Tokenizer``, also called in the engine, for grammars; its
    settings, if it has any, are the last argument."""

    kind: ClassVar[str] = "tokenizer"

    detects: str | None = None
    """``"package.module:function"``: ``(TokenizerSource) -> bool``, whether it reads this file or folder; like
    ``CheckpointSpec.detects``, for ``--tokenizer-mode``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaProcessorSpec(Spec):
    """Makes prompts of tokens and images for a family of models. Target: a function ``(MediaSource) ->
    MediaProcessor``, called in the API process; its settings, if it has any, are the last argument."""

    kind: ClassVar[str] = "media-processor"

    architectures: frozenset[str] = frozenset()
    """Names of the models it is for: it is theirs where none is named and no plugin chooses another."""

    def matches_model(self, model: Any) -> bool:
        """Report whether the media processor suits the model, like ``Spec.matches_model``."""
        return bool(self.architectures.intersection((getattr(model, "architectures", None) or ())[:1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarSpec(Spec):
    """A backend of structured outputs. Target: a ``GrammarBackend`` subclass, made with the vocabulary and its settings
    or ``None``."""

    kind: ClassVar[str] = "grammar"

    forms: frozenset[ConstraintKind] = frozenset(CONSTRAINT_KINDS)
    """Kinds of constraints that it can enforce at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolParserSpec(Spec):
    """A format in which models call functions. Target: an ``OutputParser`` subclass, whose attribute ``settings`` are
    its settings."""

    kind: ClassVar[str] = "tool-parser"

    alias_of: str = ""
    """The name for which this is another one, so that it is never chosen where none is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningParserSpec(Spec):
    """A format of reasoning in outputs. Target: an ``OutputParser`` subclass, whose attribute ``settings`` are its
    settings."""

    kind: ClassVar[str] = "reasoning-parser"

    alias_of: str = ""
    """The name for which this is another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSpec(Spec):
    """A group of HTTP routes. Target: ``build(engine)``, where ``engine`` is the text side of the engine
    (``sglang_plug_api.plugin.TextEngine``); its settings, if it has any, are the last argument. It returns a
    ``fastapi.APIRouter``, or a ``sglang_plug_api.plugin.RouteGroup``."""

    kind: ClassVar[str] = "route"

    auth: Auth = "user"
    tasks: frozenset[Task] = frozenset()
    """Mounted only if the model can do one of these; empty: always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpec(Spec):
    """Keeps files, batches and responses. Target: a function ``(StoreContext) -> Store``, called in the API process;
    its settings, if it has any, are the last argument."""

    kind: ClassVar[str] = "store"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec(Spec):
    """A subcommand. Target: an object with ``arguments(parser, plugins)`` and ``run(options, plugins)``; if it has
    settings, a class or function that makes one of them."""

    kind: ClassVar[str] = "command"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverSpec(Spec):
    """Watches requests and steps from the API process. Target: an ``Observer`` subclass, made with its settings, or
    with nothing if it has none."""

    kind: ClassVar[str] = "observer"

    enabled: bool = True
    """Loaded unless blocked; an observer with ``enabled=False`` is loaded only when named by ``--observer``."""
