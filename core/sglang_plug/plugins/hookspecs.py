"""The hooks of sglang-plug.

All hooks are called once, while starting, and never while serving. The ``register_*`` hooks take no
argument and return (or yield) specs; core calls each implementation on its own, so every component is
attributed to its plugin and distribution, and a failing plugin is isolated.

Two plugins that declare one ``kind:name`` are both listed; using the name is an error that names both
until ``--prefer kind:name=DISTRIBUTION`` settles it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pluggy

from .specs import (
    AdapterSpec,
    AttentionSpec,
    CheckpointSpec,
    CommandSpec,
    DeploymentSpec,
    DrafterSpec,
    EvictionSpec,
    ExecutorSpec,
    GrammarSpec,
    KernelSpec,
    KVStoreSpec,
    LogitsProcessorSpec,
    MediaProcessorSpec,
    ModelSpec,
    ObserverSpec,
    PrefixCacheSpec,
    QuantizationSpec,
    ReasoningParserSpec,
    RouteSpec,
    RoutingSpec,
    ScheduleSpec,
    StepExtensionSpec,
    StoreSpec,
    TokenizerSpec,
    ToolParserSpec,
    WeightsSpec,
)

if TYPE_CHECKING:
    from sglang_plug.config import EngineConfig

API_VERSION = 1
"""Rises only when a hook, an argument or an exported name is removed or changes its meaning. A plugin module may state
``api_version = 1``; another version is refused when the plugin is loaded."""
API_MINOR_VERSION = 0
"""Rises when the contract gains or deprecates something; it begins again at 0 when ``API_VERSION`` rises."""
CONTRACT_VERSION = f"{API_VERSION}.{API_MINOR_VERSION}"
"""The version of everything that plugins may use; docs/compatibility-policy.md says what it guarantees."""

hookspec = pluggy.HookspecMarker("sglang_plug")
hookimpl = pluggy.HookimplMarker("sglang_plug")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts that ``choose_component`` may decide by. Plain values; one that is not known yet is ``None``."""

    device: str = "cpu"
    source: str | None = None
    """The model to serve, as named by ``--model-path``: a file, a folder or a hub id."""
    subjects: Mapping[str, Any] = field(default_factory=dict)
    """Kind -> what its components are asked to recognise, see ``CheckpointSpec.detects``."""
    dtype: str | None = None
    model: Any = None
    """The checkpoint's configuration, once it has been read."""
    shape: Any = None
    """The ``AttentionShape``, once the model class is known."""
    platform: Mapping[str, Any] = field(default_factory=dict)
    """Further facts about the machine, e.g. ``{"capability": (9, 0)}`` on CUDA."""


@hookspec
def register_models() -> Iterable[ModelSpec]:  # type: ignore[empty-body]
    """Model classes, named after the ``architectures`` entry of a checkpoint's ``config.json``.

    Asked once at start-up; the target is imported when a checkpoint of that architecture is served.
    """


@hookspec
def register_attention_backends() -> Iterable[AttentionSpec]:  # type: ignore[empty-body]
    """Attention backends selectable with ``--attention-backend``.

    Asked once, before options are parsed, so the names appear in ``--help``: declare, do not import torch.
    """


@hookspec
def register_kernels() -> Iterable[KernelSpec]:  # type: ignore[empty-body]
    """Kernel sets selectable with ``--kernels``. A set may replace any part of the torch reference."""


@hookspec
def register_quantizations() -> Iterable[QuantizationSpec]:  # type: ignore[empty-body]
    """Quantization methods, selectable with ``--quantization``.

    Left at ``auto``, ``choose_component`` is asked with ``facts.model``, whose ``quantization_config`` says what the
    checkpoint holds. Nobody needs to answer for a checkpoint that is not quantized.
    """


@hookspec
def register_cache_policies() -> Iterable[PrefixCacheSpec | EvictionSpec]:  # type: ignore[empty-body]
    """Prefix caches (``--prefix-cache``) and eviction policies (``--eviction-policy``)."""


@hookspec
def register_kv_stores() -> Iterable[KVStoreSpec]:  # type: ignore[empty-body]
    """Stores that keep computed prefixes outside of the KV pool, selectable with ``--kv-store``.

    Several may be named, the fastest first. None is used by default.
    """


@hookspec
def register_schedule_policies() -> Iterable[ScheduleSpec]:  # type: ignore[empty-body]
    """Orders of the waiting queue selectable with ``--schedule-policy``."""


@hookspec
def register_executors() -> Iterable[ExecutorSpec]:  # type: ignore[empty-body]
    """Components that start the ranks of one model, selectable with ``--executor``; asked for where ``--tp-size`` is
    more than 1."""


@hookspec
def register_deployments() -> Iterable[DeploymentSpec]:  # type: ignore[empty-body]
    """Ways to run engines, selectable with ``--deployment``: a process of this machine, or another platform.

    The target is called in the API process, once for each of ``--replicas`` and again for each restart.
    """


@hookspec
def register_routing_policies() -> Iterable[RoutingSpec]:  # type: ignore[empty-body]
    """Choices of the replica that serves a request, selectable with ``--routing-policy``; they run in the API process.

    Asked for where ``--replicas`` is more than 1.
    """


@hookspec
def register_drafters() -> Iterable[DrafterSpec]:  # type: ignore[empty-body]
    """Drafters, which propose draft tokens, selectable with ``--speculative-algorithm``.

    Left at ``auto``, ``choose_component`` is asked, and nobody need answer; by default there is no drafter.
    """


@hookspec
def register_step_extensions() -> Iterable[StepExtensionSpec]:  # type: ignore[empty-body]
    """Features that take part in the steps of the engine, such as speculative decoding.

    Every extension that is installed and not blocked is built when the engine starts; one whose feature the
    configuration does not use returns ``None`` and costs nothing.
    """


@hookspec
def register_logits_processors() -> Iterable[LogitsProcessorSpec]:  # type: ignore[empty-body]
    """Processors that change logits before sampling, for requests that ask for it with fields of their own.

    Every processor is loaded where the model generates; ``--block-plugin logits-processor:NAME`` leaves one out, and
    requests with its fields are then refused.
    """


@hookspec
def register_adapters() -> Iterable[AdapterSpec]:  # type: ignore[empty-body]
    """Formats of adapters, which requests name (``--lora-paths``, ``/load_lora_adapter``).

    All of them are imported where adapters are enabled. Each folder goes to the first that knows it; those of other
    distributions are asked before the built-in ones.
    """


@hookspec
def register_weight_loaders() -> Iterable[CheckpointSpec | WeightsSpec]:  # type: ignore[empty-body]
    """Checkpoint readers (``--checkpoint-format``) and weight loaders (``--load-format``)."""


@hookspec
def register_tokenizers() -> Iterable[TokenizerSpec]:  # type: ignore[empty-body]
    """Tokenizers selectable with ``--tokenizer-mode``; they run in the API process."""


@hookspec
def register_media_processors() -> Iterable[MediaProcessorSpec]:  # type: ignore[empty-body]
    """Processors that make prompts of tokens and images, selectable with ``--media-processor``, in the API process.

    Left at ``auto``, ``choose_component`` is asked with ``facts.model``, which has the ``architectures`` and the
    ``model_type`` of the checkpoint; without an answer it is the one whose ``architectures`` have the model's. Nobody
    is asked for a model that takes text only.
    """


@hookspec
def register_grammar_backends() -> Iterable[GrammarSpec]:  # type: ignore[empty-body]
    """Backends of structured outputs selectable with ``--grammar-backend``, and by each request.

    One that is needed is built in the engine, which fills masks, and in a process of its own, which compiles. Where
    none is named, each constraint goes to the first that fully enforces it, the chosen one first.
    """


@hookspec
def register_output_parsers() -> Iterable[ToolParserSpec | ReasoningParserSpec]:  # type: ignore[empty-body]
    """Formats of calls (``--tool-call-parser``) and of reasoning (``--reasoning-parser``) in outputs.

    They read text in the API process. ``--tool-call-parser auto`` takes the first whose ``matches_template`` returns
    True; parsers of other distributions are asked before the built-in ones.
    """


@hookspec
def register_routes() -> Iterable[RouteSpec]:  # type: ignore[empty-body]
    """Groups of HTTP routes. Two groups that claim one method and path stop the start and are both named."""


@hookspec
def register_stores() -> Iterable[StoreSpec]:  # type: ignore[empty-body]
    """Stores of files, batches and responses, selectable with ``--store``; they run in the API process."""


@hookspec
def register_commands() -> Iterable[CommandSpec]:  # type: ignore[empty-body]
    """Subcommands of ``sglang-plug``."""


@hookspec
def register_observers() -> Iterable[ObserverSpec]:  # type: ignore[empty-body]
    """Observers of requests and steps: metrics, logs, tracing."""


@hookspec(firstresult=True)
def choose_component(kind: str, facts: Facts) -> str | None:
    """The component of ``kind`` to use where the user said ``auto``; ``None`` passes.

    Asked once per kind, in this order: files and folders that the user named, the last named one first; installed
    distributions in alphabetical order; sglang-plug itself. The first answer counts, and a warning at the start names
    plugins that would choose another component. ``tryfirst`` and ``trylast`` of ``hookimpl`` come before and after all
    others. ``kind="model-path"`` asks for the model to serve when none was named,
    ``kind="model"`` for a generic one where nothing is declared under the architecture of ``facts.model``.
    """


@hookspec
def configure(config: EngineConfig) -> None:
    """The final configuration, just before the engine is built. Raise ``ConfigError`` to refuse it."""
