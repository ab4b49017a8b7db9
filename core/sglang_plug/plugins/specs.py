"""Specs: the components that a plugin may declare. Torch-free: every process and every ``--help`` imports this."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, get_args

from sglang_plug.contracts.sampling_params import PROCESSED_PARAMS
from sglang_plug.contracts.text.grammar import CONSTRAINT_KINDS, ConstraintKind

Task = Literal["generate", "embed", "classify", "rerank"]
Auth = Literal["public", "user", "admin"]

EXTENSION_FIELDS = ("adapter",)
"""Fields of ``Request`` that only step extensions serve; ``None`` where a request does not use one."""
ANY_DEVICE: frozenset[str] = frozenset({"any"})
NAME = re.compile(r"(?!auto$)[^\s=:,]+")
TARGET = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*")


def _set_of(names: Sequence[str] = ()) -> tuple[Callable[[Any], bool], str]:
    """Return a check for a frozenset of text, or of some of ``names``, and its description."""

    def accepts(value: Any) -> bool:
        return isinstance(value, frozenset) and all(
            isinstance(one, str) and (not names or one in names) for one in value
        )

    return accepts, "a frozenset of " + (f"some of {', '.join(names)}" if names else "text, as frozenset({'cpu'})")


ACCEPTED: Mapping[Any, tuple[Callable[[Any], bool], str]] = {
    "str": (lambda value: isinstance(value, str), "text"),
    "str | None": (lambda value: isinstance(value, str | None), "text or None"),
    "bool": (lambda value: isinstance(value, bool), "True or False"),
    "int": (lambda value: isinstance(value, int) and not isinstance(value, bool), "a whole number"),
    "tuple[str, ...]": (
        lambda value: isinstance(value, tuple) and all(isinstance(one, str) for one in value),
        "a tuple of text, as ('torch',)",
    ),
    "frozenset[str]": _set_of(),
    "frozenset[Task]": _set_of(get_args(Task)),
    "frozenset[ConstraintKind]": _set_of(CONSTRAINT_KINDS),
    "Auth": (lambda value: value in get_args(Auth), f"one of {', '.join(get_args(Auth))}"),
}
"""Annotation of a field -> what it may hold, and how an error says that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A named component and where to find it.

    ``target`` is ``"package.module:attribute"`` and is imported only when the component is selected, so a
    module that declares specs must not import torch or any other heavy library.
    """

    kind: ClassVar[str]
    takes_settings: ClassVar[bool] = False

    name: str
    target: str
    summary: str = ""
    """One line for ``plugins list`` and ``--help``."""
    settings: str | None = None
    """``"package.module:Dataclass"``: the component's own options, set with ``--set name.key=value``. Only for kinds
    whose targets are given settings."""
    needs: tuple[str, ...] = ()
    """Importable module names without which the component is listed as unavailable; ``"module>=1.2"`` for one whose
    distribution, of the same name, must have a version."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for a field that does not hold what it should: nobody else looks before it is used."""
        for item in fields(self):
            accepts, wanted = ACCEPTED[item.type]
            value = getattr(self, item.name)
            if not accepts(value):
                raise ValueError(f"{type(self).__name__}({self.name!r}): {item.name} must be {wanted}, not {value!r}")
        for name, pattern, wanted in (
            ("name", NAME, "a word without blanks and any of '=:,', other than 'auto'"),
            ("target", TARGET, "'package.module:attribute'"),
            ("settings", TARGET, "'package.module:Dataclass'"),
            ("request_fields", TARGET, "'package.module:Dataclass'"),
        ):
            value = getattr(self, name, None)
            if value is not None and not pattern.fullmatch(value):
                raise ValueError(f"{type(self).__name__}({self.name!r}): {name} must be {wanted}, not {value!r}")
        if self.settings is not None and not self.takes_settings:
            raise ValueError(
                f"{type(self).__name__}({self.name!r}): a {self.kind} is given no settings; leave them out"
            )

    def suits(self, model: Any) -> bool:
        """Report whether the component suits the model with this configuration, so that no plugin has to choose it."""
        return False


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
    parallel: bool = False
    """True if several ranks can share it (``--tp-size``): its layers cut what belongs to one rank, and its head counts
    follow ``BuildEnv.ranks``."""
    inputs: frozenset[str] = frozenset({"text"})
    """What prompts may hold. With ``"image"`` the target is a ``SupportsImages``, too, and a media processor must be
    declared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec(Spec):
    """An attention backend. Target: an ``AttentionBackend`` subclass."""

    kind: ClassVar[str] = "attention"
    takes_settings: ClassVar[bool] = True

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
    takes_settings: ClassVar[bool] = True

    devices: frozenset[str] = ANY_DEVICE


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationSpec(Spec):
    """A way to keep matrices in fewer bits. Target: a function ``(QuantizationRequest, settings) -> Quantization``,
    which raises ``ConfigError`` for a checkpoint, dtype or device that it does not support."""

    kind: ClassVar[str] = "quantization"
    takes_settings: ClassVar[bool] = True

    devices: frozenset[str] = ANY_DEVICE


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCacheSpec(Spec):
    """A prefix cache. Target: a ``PrefixCache`` subclass."""

    kind: ClassVar[str] = "prefix-cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionSpec(Spec):
    """An eviction policy. Target: a class with ``rank(node)``, made with its settings, or with nothing if it
    has none."""

    kind: ClassVar[str] = "eviction"
    takes_settings: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSpec(Spec):
    """A schedule policy. Target: a class with ``order(waiting, match)``, made with its settings, or with nothing if
    it has none."""

    kind: ClassVar[str] = "schedule"
    takes_settings: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSpec(Spec):
    """Starts the ranks that share a model. Target: an ``Executor`` subclass."""

    kind: ClassVar[str] = "executor"
    takes_settings: ClassVar[bool] = True

    devices: frozenset[str] = ANY_DEVICE
    """Device types whose ranks it can bring together, or ``{"any"}``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSpec(Spec):
    """Guesses how outputs go on. Target: a ``Drafter`` subclass, made with its settings, or with nothing if it has
    none."""

    kind: ClassVar[str] = "drafter"
    takes_settings: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StepExtensionSpec(Spec):
    """A feature that takes part in the steps of the engine. Target: a function ``(ExtensionContext) -> StepExtension |
    None``; ``None`` if the configuration does not use the feature."""

    kind: ClassVar[str] = "step-extension"
    takes_settings: ClassVar[bool] = True

    before: tuple[str, ...] = ()
    """Names of extensions that come after this one at every extension point."""
    after: tuple[str, ...] = ()
    """Names of extensions that come before this one at every extension point."""
    serves: tuple[str, ...] = ()
    """Fields of ``Request`` that it serves, some of ``adapter``. Where nobody serves one, requests with it are refused.
    """
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
    takes_settings: ClassVar[bool] = True

    request_fields: str | None = None
    """``"package.module:Dataclass"``: each of its fields is a field of requests, beside ``temperature`` (in
    ``sampling_params`` of ``/generate`` and of the offline engine). All have defaults. A dataclass or a
    ``msgspec.Struct``, whose module must not import torch."""
    sampling_params: tuple[str, ...] = ()
    """Parameters that every server knows and that this processor applies: some of ``logit_bias``, ``min_new_tokens``,
    ``frequency_penalty``, ``presence_penalty`` and ``repetition_penalty``. Where nobody applies one, requests that set
    it are refused."""
    order: int = 500
    """Processors run in ascending order, then by name. The built-in ones have 100 (``logit-bias``), 200
    (``penalties``) and 900 (``min-new-tokens``)."""

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
    takes_settings: ClassVar[bool] = True


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
    """A tokenizer. Target: a function ``(TokenizerSource) -> Tokenizer``, also called in the engine, for grammars."""

    kind: ClassVar[str] = "tokenizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaProcessorSpec(Spec):
    """Makes prompts of tokens and images for a family of models. Target: a function ``(MediaSource) ->
    MediaProcessor``, called in the API process."""

    kind: ClassVar[str] = "media-processor"

    architectures: frozenset[str] = frozenset()
    """Names of the models it is for: it is theirs where none is named and no plugin chooses another."""

    def suits(self, model: Any) -> bool:
        """Report whether the parser suits the model, like ``Spec.suits``."""
        return bool(self.architectures.intersection((getattr(model, "architectures", None) or ())[:1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarSpec(Spec):
    """A backend of structured outputs. Target: a ``GrammarBackend`` subclass."""

    kind: ClassVar[str] = "grammar"
    takes_settings: ClassVar[bool] = True

    forms: frozenset[ConstraintKind] = frozenset(CONSTRAINT_KINDS)
    """Kinds of constraints that it can enforce at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolParserSpec(Spec):
    """A format in which models call functions. Target: an ``OutputParser`` subclass."""

    kind: ClassVar[str] = "tool-parser"

    alias_of: str = ""
    """The name for which this is another one, so that it is never chosen where none is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningParserSpec(Spec):
    """A format in which models think aloud. Target: an ``OutputParser`` subclass."""

    kind: ClassVar[str] = "reasoning-parser"

    alias_of: str = ""
    """The name for which this is another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSpec(Spec):
    """A group of HTTP routes. Target: ``build(engine) -> fastapi.APIRouter``, where ``engine`` is the text side of the
    engine (``sglang_plug_api.plugin.TextEngine``)."""

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
    """Watches requests and steps from the API process. Target: an ``Observer`` subclass, made with its settings, or
    with nothing if it has none."""

    kind: ClassVar[str] = "observer"
    takes_settings: ClassVar[bool] = True

    enabled: bool = True
    """Loaded unless blocked; an observer with ``enabled=False`` is loaded only when named by ``--observer``."""
