"""The public names of sglang-plug: what a plugin may import.

Loaded lazily (PEP 562), so that declaring a plugin or printing ``--help`` imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .public_names import HOME
from .renamed import current_name

if TYPE_CHECKING:
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
        StoredCapable,
        WeighingCapable,
    )
    from sglang_plug.contracts.model.batch import BidirectionalImage, ForwardBatch, KVPool, KVScale, MultimodalInputs
    from sglang_plug.contracts.model.checkpoint import Checkpoint, CheckpointRequest, KVScaleTensor, WeightLoader
    from sglang_plug.contracts.model.kernels import Kernels
    from sglang_plug.contracts.model.model import BuildEnv, Model, SupportsImages, WeightError
    from sglang_plug.contracts.model.pooling import Pooling, Projection
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
        LogprobOptions,
        Output,
        Request,
        RequestError,
        TokenLogprob,
    )
    from sglang_plug.contracts.sampling_params import SamplingParams
    from sglang_plug.contracts.serving.cache import EvictionPolicy, Match, NodeStats, PrefixCache
    from sglang_plug.contracts.serving.drafting import Drafter, SequenceDrafter
    from sglang_plug.contracts.serving.executor import (
        Collectives,
        Executor,
        LaunchSpec,
        RankEndpoint,
        RankGroup,
        own_slice,
    )
    from sglang_plug.contracts.serving.extension import (
        AdmissionPhase,
        ChunkView,
        ExtensionContext,
        OutputPhase,
        PlanningPhase,
        SequenceView,
        ServicePhase,
        StepExtension,
        StepPlan,
    )
    from sglang_plug.contracts.serving.logits_processor import (
        LogitsBatch,
        LogitsProcessor,
        LogitsRow,
        ProcessorRequest,
    )
    from sglang_plug.contracts.serving.observer import Observer, RequestEvent, StepStats
    from sglang_plug.contracts.serving.scheduling import (
        AccountingPolicy,
        PreemptivePolicy,
        SchedulePolicy,
        TokenUsage,
        Waiting,
    )
    from sglang_plug.contracts.text.grammar import (
        Constraint,
        ConstraintError,
        Grammar,
        GrammarBackend,
        ReasoningPrefix,
        Vocabulary,
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
        OutputParser,
        Reasoning,
        ReasoningMarks,
        Text,
    )
    from sglang_plug.contracts.text.tokenizer import StreamDecoder, TemplateError, Tokenizer, TokenizerSource
    from sglang_plug.ops.host_device_copy import pinned, send, upload, upload_array
    from sglang_plug.ops.lora import LowRank, LowRankPart, LowRankTable
    from sglang_plug.ops.quantized_weight import QuantizedWeight
    from sglang_plug.ops.sampling import SamplingOptions
    from sglang_plug.plugins.hookspecs import API_VERSION, hookimpl
    from sglang_plug.plugins.registry import Facts, PluginError, Plugins
    from sglang_plug.plugins.specs import (
        AdapterSpec,
        AttentionSpec,
        CheckpointSpec,
        CommandSpec,
        DrafterSpec,
        EvictionSpec,
        ExecutorSpec,
        GrammarSpec,
        KernelSpec,
        LogitsProcessorSpec,
        MediaProcessorSpec,
        ModelSpec,
        ObserverSpec,
        PrefixCacheSpec,
        QuantizationSpec,
        ReasoningParserSpec,
        RouteSpec,
        ScheduleSpec,
        Spec,
        StepExtensionSpec,
        TokenizerSpec,
        ToolParserSpec,
        WeightsSpec,
    )

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
    "Attention",
    "AttentionBackend",
    "AttentionShape",
    "AttentionSpec",
    "BidirectionalImage",
    "BuildEnv",
    "CallArguments",
    "CallEnd",
    "CallStart",
    "CannotCaptureError",
    "Checkpoint",
    "CheckpointNotFoundError",
    "CheckpointRequest",
    "CheckpointSpec",
    "ChunkView",
    "Collectives",
    "CommandSpec",
    "ConfigError",
    "Constraint",
    "ConstraintError",
    "DraftCounts",
    "Drafter",
    "DrafterSpec",
    "EngineConfig",
    "EvictionPolicy",
    "EvictionSpec",
    "Executor",
    "ExecutorSpec",
    "ExtensionContext",
    "Facts",
    "Finish",
    "ForwardBatch",
    "Grammar",
    "GrammarBackend",
    "GrammarSpec",
    "GraphCapable",
    "GraphRecorder",
    "Joinable",
    "JoinedAdapters",
    "KVPool",
    "KVScale",
    "KVScaleTensor",
    "KernelSpec",
    "Kernels",
    "LaunchSpec",
    "LayerAdapter",
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
    "Model",
    "ModelSpec",
    "MultimodalInputs",
    "NodeStats",
    "Observer",
    "ObserverSpec",
    "Output",
    "OutputParser",
    "OutputPhase",
    "OwnPart",
    "PlanningPhase",
    "PluginError",
    "PluginOptions",
    "Plugins",
    "Pooling",
    "PreemptivePolicy",
    "PrefixCache",
    "PrefixCacheSpec",
    "ProcessorRequest",
    "Projection",
    "Quantization",
    "QuantizationRequest",
    "QuantizationSpec",
    "QuantizedWeight",
    "RankEndpoint",
    "RankGroup",
    "Reasoning",
    "ReasoningMarks",
    "ReasoningParserSpec",
    "ReasoningPrefix",
    "Recurrent",
    "Request",
    "RequestError",
    "RequestEvent",
    "RouteSpec",
    "Runs",
    "SamplingOptions",
    "SamplingParams",
    "SchedulePolicy",
    "ScheduleSpec",
    "SequenceDrafter",
    "SequenceView",
    "ServicePhase",
    "Spec",
    "StatePool",
    "StateShape",
    "StepExtension",
    "StepExtensionSpec",
    "StepPlan",
    "StepStats",
    "StoredCapable",
    "StoredTensor",
    "StreamDecoder",
    "SupportsImages",
    "TemplateError",
    "Text",
    "TokenLogprob",
    "TokenUsage",
    "Tokenizer",
    "TokenizerSource",
    "TokenizerSpec",
    "ToolParserSpec",
    "Vocabulary",
    "Waiting",
    "WeighingCapable",
    "WeightError",
    "WeightLoader",
    "WeightsSpec",
    "hookimpl",
    "own_slice",
    "pinned",
    "send",
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
