"""The public names of sglang-plug: what a plugin may import.

Loaded lazily (PEP 562), so that declaring a plugin or printing ``--help`` imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .public_names import HOME
from .renamed import current_name

if TYPE_CHECKING:
    from sglang_plug.clients.remote_client import RemoteClient
    from sglang_plug.clients.remote_messages import decode_launch, encode_launch
    from sglang_plug.clients.remote_server import EngineServer
    from sglang_plug.contracts.extension.base import ExtensionContext, StepExtension
    from sglang_plug.contracts.extension.execution import (
        DeviceTokens,
        ExecutionContext,
        ExecutionPhase,
        StepExecutor,
        StepLogits,
    )
    from sglang_plug.contracts.extension.memory_phases import (
        CachePhase,
        MemoryPhase,
        MemoryRequest,
        ProfilingPhase,
        StatePhase,
    )
    from sglang_plug.contracts.extension.places import PlacesPhase
    from sglang_plug.contracts.extension.request_phases import AdmissionPhase, OutputPhase, PlanningPhase, ServicePhase
    from sglang_plug.contracts.extension.sampling_phases import (
        AllowedTokens,
        BlockingRequest,
        HoldPhase,
        PendingMask,
        ReadySequence,
        SamplingPhase,
        TokenDecision,
        WatchdogPhase,
    )
    from sglang_plug.contracts.extension.step_budget import PromptBudget, StepBudgetPhase
    from sglang_plug.contracts.extension.step_phases import (
        ForwardPhase,
        GraphPhase,
        InputPhase,
        ModelPhase,
        RankPhase,
        RankStep,
        StaticInputPhase,
    )
    from sglang_plug.contracts.extension.views import (
        ChunkView,
        ExtensionRanks,
        PendingTensor,
        PrefixPool,
        PromptLayout,
        SequenceView,
        StepPlan,
        TensorStore,
    )
    from sglang_plug.contracts.model.adapters import (
        AdaptableLayer,
        Adapter,
        AdapterReader,
        AdapterRequest,
        Joinable,
        JoinedAdapters,
        LayerAdapter,
        LowRankAdapter,
        OwnPart,
    )
    from sglang_plug.contracts.model.attention import (
        Attention,
        AttentionBackend,
        AttentionShape,
        CannotCaptureError,
        GraphCapable,
        GraphRecorder,
        ReplayCapable,
        StoredCapable,
        TokenReplay,
        UnreadLengths,
        WeighingCapable,
    )
    from sglang_plug.contracts.model.batch import BidirectionalImage, ForwardBatch, KVPool, KVScale, MultimodalInputs
    from sglang_plug.contracts.model.checkpoint import Checkpoint, CheckpointRequest, KVScaleTensor, WeightLoader
    from sglang_plug.contracts.model.kernels import Kernels, LinearFunction
    from sglang_plug.contracts.model.model import BuildEnv, Model, SupportsImages, WeightError
    from sglang_plug.contracts.model.pooling import Pooling, PoolingMode, Projection
    from sglang_plug.contracts.model.quantization import (
        LinearScheme,
        Matrix,
        Quantization,
        QuantizationRequest,
        StoredTensor,
    )
    from sglang_plug.contracts.model.recurrent_state import Recurrent, Runs, StatePool, StateShape
    from sglang_plug.contracts.request import (
        DraftCounts,
        Finish,
        KVTransfer,
        LogprobOptions,
        Output,
        Request,
        RequestError,
        TokenLogprob,
    )
    from sglang_plug.contracts.sampling_params import SamplingParams
    from sglang_plug.contracts.serving.cache import CachedRun, EvictionPolicy, Match, NodeStats, PrefixCache
    from sglang_plug.contracts.serving.drafting import Drafter, SequenceDrafter
    from sglang_plug.contracts.serving.engine_client import (
        EngineAddress,
        EngineClient,
        EngineError,
        EngineLaunch,
        ReplicaReply,
        ReplicaStatus,
    )
    from sglang_plug.contracts.serving.executor import (
        CapturedCollectives,
        Collectives,
        Executor,
        LaunchSpec,
        RankEndpoint,
        RankGroup,
        own_slice,
    )
    from sglang_plug.contracts.serving.kv_store import (
        KVBlock,
        KVBlockPart,
        KVStore,
        KVStoreError,
        KVStoreStats,
        KVTransferStore,
    )
    from sglang_plug.contracts.serving.lifecycle import Lifecycle
    from sglang_plug.contracts.serving.logits_processor import (
        LogitsBatch,
        LogitsProcessor,
        LogitsRow,
        ProcessorRequest,
    )
    from sglang_plug.contracts.serving.observer import MetricInfo, MetricTotal, Observer, RequestEvent, StepStats
    from sglang_plug.contracts.serving.routing import CacheAwareRouting, ReplicaLoad, RoutingPolicy, prefix_digests
    from sglang_plug.contracts.serving.scheduling import (
        AccountingPolicy,
        PreemptivePolicy,
        SchedulePolicy,
        TokenUsage,
        Waiting,
    )
    from sglang_plug.contracts.storage.errors import (
        ContentMissing,
        FileInUse,
        StorageBroken,
        StorageError,
        StorageFull,
        StorageUnavailable,
        UnknownId,
    )
    from sglang_plug.contracts.storage.records import (
        BATCH_TRANSITIONS,
        OPEN_BATCH_STATUSES,
        WHOLE_BATCH,
        BatchRecord,
        BatchStatus,
        FileRecord,
        LineResult,
        Page,
        ResponseRecord,
        TokenCounts,
    )
    from sglang_plug.contracts.storage.responses import ResponseEvent, ResponseStore
    from sglang_plug.contracts.storage.store import ContentWriter, Store, StoreContext
    from sglang_plug.contracts.storage.wrapper import StoreWrapper
    from sglang_plug.contracts.text.grammar import (
        SCHEMA_FIELD,
        Constraint,
        ConstraintError,
        ConstraintKind,
        Grammar,
        GrammarBackend,
        ReasoningPrefix,
    )
    from sglang_plug.contracts.text.media import (
        Media,
        MediaArray,
        MediaError,
        MediaLimits,
        MediaProcessor,
        MediaProcessorLoader,
        MediaPrompt,
        MediaSource,
    )
    from sglang_plug.contracts.text.parsers import (
        CallArguments,
        CallEnd,
        CallStart,
        Event,
        OutputParser,
        Reasoning,
        ReasoningBlock,
        ReasoningBlockMarks,
        ReasoningMarks,
        Text,
    )
    from sglang_plug.contracts.text.tokenizer import StreamDecoder, TemplateError, Tokenizer, TokenizerSource
    from sglang_plug.contracts.text.vocabulary import Vocabulary
    from sglang_plug.ops.host_device_copy import Fetched, pinned, send, upload, upload_array
    from sglang_plug.ops.lora import LowRank, LowRankPart, LowRankTable
    from sglang_plug.ops.pooling import pooled
    from sglang_plug.ops.quantized_weight import QuantizedWeight
    from sglang_plug.ops.sampling import SamplingOptions
    from sglang_plug.plugins.attribution import attributed
    from sglang_plug.plugins.component import Component, PluginError
    from sglang_plug.plugins.hookspecs import API_VERSION, Facts, hookimpl
    from sglang_plug.plugins.registry import Plugins
    from sglang_plug.plugins.spec import Spec, Task
    from sglang_plug.plugins.specs import (
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
    from sglang_plug.system.child_process import (
        child_environment,
        end_child,
        leave_signals_to_parent,
        python_command,
        start_child,
    )
    from sglang_plug.system.host_memory import HostMemory, host_memory
    from sglang_plug.system.memory_advice import memory_advice
    from sglang_plug.system.out_of_memory import is_out_of_memory
    from sglang_plug.system.shared_secret import read_credential, read_shared_secret

    from .config import AUTO, CheckpointNotFoundError, ConfigError, EngineConfig, PluginOptions

_MODULE = {name: module for module, names in HOME.items() for name in names}

__version__ = "0.1.0"
__all__ = [
    "API_VERSION",
    "AUTO",
    "AccountingPolicy",
    "AdaptableLayer",
    "Adapter",
    "AdapterReader",
    "AdapterRequest",
    "AdapterSpec",
    "AdmissionPhase",
    "AllowedTokens",
    "Attention",
    "AttentionBackend",
    "AttentionShape",
    "AttentionSpec",
    "BATCH_TRANSITIONS",
    "BatchRecord",
    "BatchStatus",
    "BidirectionalImage",
    "BlockingRequest",
    "BuildEnv",
    "CacheAwareRouting",
    "CachePhase",
    "CachedRun",
    "CallArguments",
    "CallEnd",
    "CallStart",
    "CannotCaptureError",
    "CapturedCollectives",
    "Checkpoint",
    "CheckpointNotFoundError",
    "CheckpointRequest",
    "CheckpointSpec",
    "ChunkView",
    "Collectives",
    "CommandSpec",
    "Component",
    "ConfigError",
    "Constraint",
    "ConstraintError",
    "ConstraintKind",
    "ContentMissing",
    "ContentWriter",
    "DeploymentSpec",
    "DeviceTokens",
    "DraftCounts",
    "Drafter",
    "DrafterSpec",
    "EngineAddress",
    "EngineClient",
    "EngineConfig",
    "EngineError",
    "EngineLaunch",
    "EngineServer",
    "Event",
    "EvictionPolicy",
    "EvictionSpec",
    "ExecutionContext",
    "ExecutionPhase",
    "Executor",
    "ExecutorSpec",
    "ExtensionContext",
    "ExtensionRanks",
    "Facts",
    "Fetched",
    "FileInUse",
    "FileRecord",
    "Finish",
    "ForwardBatch",
    "ForwardPhase",
    "Grammar",
    "GrammarBackend",
    "GrammarSpec",
    "GraphCapable",
    "GraphPhase",
    "GraphRecorder",
    "HoldPhase",
    "HostMemory",
    "InputPhase",
    "Joinable",
    "JoinedAdapters",
    "KVBlock",
    "KVBlockPart",
    "KVPool",
    "KVScale",
    "KVScaleTensor",
    "KVStore",
    "KVStoreError",
    "KVStoreSpec",
    "KVStoreStats",
    "KVTransfer",
    "KVTransferStore",
    "KernelSpec",
    "Kernels",
    "LaunchSpec",
    "LayerAdapter",
    "Lifecycle",
    "LineResult",
    "LinearFunction",
    "LinearScheme",
    "LogitsBatch",
    "LogitsProcessor",
    "LogitsProcessorSpec",
    "LogitsRow",
    "LogprobOptions",
    "LowRank",
    "LowRankAdapter",
    "LowRankPart",
    "LowRankTable",
    "Match",
    "Matrix",
    "Media",
    "MediaArray",
    "MediaError",
    "MediaLimits",
    "MediaProcessor",
    "MediaProcessorLoader",
    "MediaProcessorSpec",
    "MediaPrompt",
    "MediaSource",
    "MemoryPhase",
    "MemoryRequest",
    "MetricInfo",
    "MetricTotal",
    "Model",
    "ModelPhase",
    "ModelSpec",
    "MultimodalInputs",
    "NodeStats",
    "OPEN_BATCH_STATUSES",
    "Observer",
    "ObserverSpec",
    "Output",
    "OutputParser",
    "OutputPhase",
    "OwnPart",
    "Page",
    "PendingMask",
    "PendingTensor",
    "PlacesPhase",
    "PlanningPhase",
    "PluginError",
    "PluginOptions",
    "Plugins",
    "Pooling",
    "PoolingMode",
    "PreemptivePolicy",
    "PrefixCache",
    "PrefixCacheSpec",
    "PrefixPool",
    "ProcessorRequest",
    "ProfilingPhase",
    "Projection",
    "PromptBudget",
    "PromptLayout",
    "Quantization",
    "QuantizationRequest",
    "QuantizationSpec",
    "QuantizedWeight",
    "RankEndpoint",
    "RankGroup",
    "RankPhase",
    "RankStep",
    "ReadySequence",
    "Reasoning",
    "ReasoningBlock",
    "ReasoningBlockMarks",
    "ReasoningMarks",
    "ReasoningParserSpec",
    "ReasoningPrefix",
    "Recurrent",
    "RemoteClient",
    "ReplayCapable",
    "ReplicaLoad",
    "ReplicaReply",
    "ReplicaStatus",
    "Request",
    "RequestError",
    "RequestEvent",
    "ResponseEvent",
    "ResponseRecord",
    "ResponseStore",
    "RouteSpec",
    "RoutingPolicy",
    "RoutingSpec",
    "Runs",
    "SCHEMA_FIELD",
    "SamplingOptions",
    "SamplingParams",
    "SamplingPhase",
    "SchedulePolicy",
    "ScheduleSpec",
    "SequenceDrafter",
    "SequenceView",
    "ServicePhase",
    "Spec",
    "StatePhase",
    "StatePool",
    "StateShape",
    "StaticInputPhase",
    "StepBudgetPhase",
    "StepExecutor",
    "StepExtension",
    "StepExtensionSpec",
    "StepLogits",
    "StepPlan",
    "StepStats",
    "StorageBroken",
    "StorageError",
    "StorageFull",
    "StorageUnavailable",
    "Store",
    "StoreContext",
    "StoreSpec",
    "StoreWrapper",
    "StoredCapable",
    "StoredTensor",
    "StreamDecoder",
    "SupportsImages",
    "Task",
    "TemplateError",
    "TensorStore",
    "Text",
    "TokenCounts",
    "TokenDecision",
    "TokenLogprob",
    "TokenReplay",
    "TokenUsage",
    "Tokenizer",
    "TokenizerSource",
    "TokenizerSpec",
    "ToolParserSpec",
    "UnknownId",
    "UnreadLengths",
    "Vocabulary",
    "WHOLE_BATCH",
    "Waiting",
    "WatchdogPhase",
    "WeighingCapable",
    "WeightError",
    "WeightLoader",
    "WeightsSpec",
    "attributed",
    "child_environment",
    "decode_launch",
    "encode_launch",
    "end_child",
    "hookimpl",
    "host_memory",
    "is_out_of_memory",
    "leave_signals_to_parent",
    "memory_advice",
    "own_slice",
    "pinned",
    "pooled",
    "prefix_digests",
    "python_command",
    "read_credential",
    "read_shared_secret",
    "send",
    "start_child",
    "upload",
    "upload_array",
]


def __getattr__(name: str) -> Any:
    name = current_name(name)
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULE[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
