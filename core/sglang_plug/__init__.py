"""The public names of sglang-plug: what a plugin may import.

Loaded lazily (PEP 562), so that declaring a plugin or printing ``--help`` imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attention import (
        Attention,
        AttentionBackend,
        AttentionShape,
        CannotCaptureError,
        GraphCapable,
        GraphRecorder,
        StoredCapable,
        WeighingCapable,
    )
    from .batch import ForwardBatch, KVPool, KVScale, Seen, SeenWhole
    from .cache import EvictionPolicy, Match, NodeStats, PrefixCache
    from .config import AUTO, CheckpointNotFoundError, ConfigError, EngineConfig, PluginOptions
    from .drawing import DrawOptions
    from .grammar import Constraint, ConstraintError, Grammar, GrammarBackend, Preamble, Vocabulary
    from .hookspecs import API_VERSION, hookimpl
    from .kernels import Kernels
    from .media import (
        Media,
        MediaArray,
        MediaError,
        MediaLimits,
        MediaProcessor,
        MediaProcessorLoader,
        MediaPrompt,
        MediaSource,
    )
    from .model import BuildEnv, Model, Seeing, WeightError
    from .parsers import CallArguments, CallEnd, CallStart, OutputParser, Reasoning, ReasoningMarks, Text
    from .plugins import Facts, PluginError, Plugins
    from .policy import (
        Checkpoint,
        CheckpointRequest,
        KVScaleTensor,
        Observer,
        Pooling,
        Projection,
        RequestEvent,
        SchedulePolicy,
        StepStats,
        Waiting,
        WeightLoader,
    )
    from .quantization import LinearScheme, Matrix, Quantization, QuantizationRequest, StoredTensor
    from .request import Finish, LogprobOptions, Output, Request, RequestError, TokenLogprob
    from .sampling import SamplingParams
    from .specs import (
        AttentionSpec,
        CheckpointSpec,
        CommandSpec,
        EvictionSpec,
        GrammarSpec,
        KernelSpec,
        MediaProcessorSpec,
        ModelSpec,
        ObserverSpec,
        PrefixCacheSpec,
        QuantizationSpec,
        ReasoningParserSpec,
        RouteSpec,
        ScheduleSpec,
        Spec,
        TokenizerSpec,
        ToolParserSpec,
        WeightsSpec,
    )
    from .tokenizer import StreamDecoder, TemplateError, Tokenizer, TokenizerSource
    from .transfer import pinned, send, upload, upload_array

_HOME = {
    "attention": (
        "Attention",
        "AttentionBackend",
        "AttentionShape",
        "CannotCaptureError",
        "GraphCapable",
        "GraphRecorder",
        "StoredCapable",
        "WeighingCapable",
    ),
    "batch": ("ForwardBatch", "KVPool", "KVScale", "Seen", "SeenWhole"),
    "cache": ("EvictionPolicy", "Match", "NodeStats", "PrefixCache"),
    "config": ("AUTO", "CheckpointNotFoundError", "ConfigError", "EngineConfig", "PluginOptions"),
    "drawing": ("DrawOptions",),
    "grammar": ("Constraint", "ConstraintError", "Grammar", "GrammarBackend", "Preamble", "Vocabulary"),
    "hookspecs": ("API_VERSION", "hookimpl"),
    "kernels": ("Kernels",),
    "media": (
        "Media",
        "MediaArray",
        "MediaError",
        "MediaLimits",
        "MediaProcessor",
        "MediaProcessorLoader",
        "MediaPrompt",
        "MediaSource",
    ),
    "model": ("BuildEnv", "Model", "Seeing", "WeightError"),
    "parsers": ("CallArguments", "CallEnd", "CallStart", "OutputParser", "Reasoning", "ReasoningMarks", "Text"),
    "plugins": ("Facts", "PluginError", "Plugins"),
    "policy": (
        "Checkpoint",
        "CheckpointRequest",
        "KVScaleTensor",
        "Observer",
        "Pooling",
        "Projection",
        "RequestEvent",
        "SchedulePolicy",
        "StepStats",
        "Waiting",
        "WeightLoader",
    ),
    "quantization": ("LinearScheme", "Matrix", "Quantization", "QuantizationRequest", "StoredTensor"),
    "request": ("Finish", "LogprobOptions", "Output", "Request", "RequestError", "TokenLogprob"),
    "sampling": ("SamplingParams",),
    "specs": (
        "AttentionSpec",
        "CheckpointSpec",
        "CommandSpec",
        "EvictionSpec",
        "GrammarSpec",
        "KernelSpec",
        "MediaProcessorSpec",
        "ModelSpec",
        "ObserverSpec",
        "PrefixCacheSpec",
        "QuantizationSpec",
        "ReasoningParserSpec",
        "RouteSpec",
        "ScheduleSpec",
        "Spec",
        "TokenizerSpec",
        "ToolParserSpec",
        "WeightsSpec",
    ),
    "tokenizer": ("StreamDecoder", "TemplateError", "Tokenizer", "TokenizerSource"),
    "transfer": ("pinned", "send", "upload", "upload_array"),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__version__ = "0.1.0"
__all__ = [
    "API_VERSION",
    "AUTO",
    "Attention",
    "AttentionBackend",
    "AttentionShape",
    "AttentionSpec",
    "BuildEnv",
    "CallArguments",
    "CallEnd",
    "CallStart",
    "CannotCaptureError",
    "Checkpoint",
    "CheckpointNotFoundError",
    "CheckpointRequest",
    "CheckpointSpec",
    "CommandSpec",
    "ConfigError",
    "Constraint",
    "ConstraintError",
    "DrawOptions",
    "EngineConfig",
    "EvictionPolicy",
    "EvictionSpec",
    "Facts",
    "Finish",
    "ForwardBatch",
    "Grammar",
    "GrammarBackend",
    "GrammarSpec",
    "GraphCapable",
    "GraphRecorder",
    "KVPool",
    "KVScale",
    "KVScaleTensor",
    "KernelSpec",
    "Kernels",
    "LinearScheme",
    "LogprobOptions",
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
    "NodeStats",
    "Observer",
    "ObserverSpec",
    "Output",
    "OutputParser",
    "PluginError",
    "PluginOptions",
    "Plugins",
    "Pooling",
    "Preamble",
    "PrefixCache",
    "PrefixCacheSpec",
    "Projection",
    "Quantization",
    "QuantizationRequest",
    "QuantizationSpec",
    "Reasoning",
    "ReasoningMarks",
    "ReasoningParserSpec",
    "Request",
    "RequestError",
    "RequestEvent",
    "RouteSpec",
    "SamplingParams",
    "SchedulePolicy",
    "ScheduleSpec",
    "Seeing",
    "Seen",
    "SeenWhole",
    "Spec",
    "StepStats",
    "StoredCapable",
    "StoredTensor",
    "StreamDecoder",
    "TemplateError",
    "Text",
    "TokenLogprob",
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
    "pinned",
    "send",
    "upload",
    "upload_array",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULE[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
