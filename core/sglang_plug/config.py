"""The frozen configuration of the engine. Nothing is parsed here: the API package builds it from flags, files and
environment.

Every option that may be ``"auto"`` is resolved once, by ``engine.startup.resolve``; nothing writes to a configuration
after construction (``dataclasses.replace`` makes a new one).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

AUTO = "auto"
NO_GRAMMARS = "none"
"""The grammar backend that refuses every constraint."""
NO_QUANTIZATION = "none"
"""The quantization that keeps every matrix in the model's dtype."""
NO_SPECULATION = "none"
"""The drafter that drafts nothing: each token takes a step of its own."""
EXTENSION = "extension"
"""Key of an option's metadata: the step extension that serves the option."""
FLAG = "flag"
"""Key of an option's metadata: its flag, as errors name the option."""
OFF = "off"
"""Key of an option's metadata: the value that switches the feature off, which needs no extension either."""


class ConfigError(ValueError):
    """The configuration cannot be served; the message says what was wrong and what to do."""


class PluginError(ConfigError):
    """A plugin is broken, ambiguous or absent; the message names the culprit and the remedy."""


class CheckpointNotFoundError(ConfigError):
    """No model of the given name exists, on this machine or on the hub."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginOptions:
    """The plugins to load, and the resolution of conflicts. Crosses to the engine process unchanged."""

    allow: tuple[str, ...] = ()
    """If not empty, only these plugins or ``kind:name`` components (besides sglang-plug's own)."""
    block: tuple[str, ...] = ()
    """Plugins (never imported) or ``kind:name`` components (hidden)."""
    files: tuple[str, ...] = ()
    """One-file plugins, ``--plugin ./file.py``."""
    dirs: tuple[str, ...] = ()
    """Folders of plugins, ``--plugins-dir``."""
    prefer: Mapping[str, str] = field(default_factory=dict)
    """``kind:name`` -> distribution."""
    strict: bool = False
    """True if every plugin failure stops the start."""
    locked: str = ""
    """A lock file: other plugins than those that it lists are an error, before anything is imported."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Component name -> option -> value, from ``--set name.key=value`` and YAML."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """The model that is served."""

    path: str = AUTO
    """A local folder or a hub id; ``auto`` asks the plugins (the embedded demo model)."""
    revision: str | None = None
    task: str = AUTO
    """The task ``generate``, or one of the pooling tasks ``embed``, ``classify``, ``rerank``; ``auto`` takes the task
    that the model is made for."""
    impl: str = AUTO
    """The model implementation. ``native``: only a model declared for the checkpoint's architecture; ``auto``: that, or
    the one that the plugins choose instead; otherwise the name of a generic model."""
    checkpoint_format: str = AUTO
    load_format: str = AUTO
    dtype: str = AUTO
    device: str = AUTO
    context_length: int | None = None
    """Greatest length of a sequence in tokens; ``None``: the checkpoint's."""
    tokenizer_path: str | None = None
    """A local folder; ``None``: the model's."""
    tokenizer_mode: str = AUTO
    media_processor: str = AUTO
    """The component that makes prompts of tokens and images, for vision-language models."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Replaces fields of ``config.json`` (``--json-model-override-args``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """The KV pool and its reuse."""

    page_size: int = 1
    """KV slots allocated together."""
    max_total_tokens: int | None = None
    """KV slots in the pool; ``None`` sizes it from free memory."""
    mem_fraction_static: float | None = None
    """On an accelerator, the share of its memory for weights, KV pool, the largest step and graphs together; on the
    host, the share of the memory that is free after loading the weights, for the pool alone. ``None``: 0.9 and 0.5."""
    max_states: int | None = field(default=None, metadata={EXTENSION: "recurrent-state", FLAG: "--max-states"})
    """Recurrent states in memory, of running sequences and of cached prefixes, in models that have them; ``None`` sizes
    their pool from free memory."""
    kv_dtype: str = AUTO
    """The dtype of the KV pool: ``fp8_e4m3``, ``fp8_e5m2``, ``bfloat16``, ``float16`` or ``float32``; ``auto``: the
    checkpoint's, or the model's if the checkpoint does not define one."""
    prefix_cache: str = AUTO
    kv_stores: tuple[str, ...] = field(default=(), metadata={EXTENSION: "kv-tiers", FLAG: "--kv-store"})
    """The stores below the prefix cache, the fastest first."""
    eviction_policy: str = "lru"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """The scheduling of steps."""

    policy: str = "fair"
    chunked_prefill_size: int = 0
    """Greatest number of new tokens in a step; 0 decides by device, -1 switches chunking off."""
    target_itl_ms: float = field(default=-1.0, metadata={EXTENSION: "step-time", FLAG: "--target-itl-ms", OFF: 0.0})
    """Milliseconds that a step with prompt tokens may take while other sequences decode: the time between their tokens.
    0: no limit; -1: 4.75 of their decode steps, and at least 50 ms."""
    max_running_requests: int | None = None
    max_queued_requests: int = 4096
    """Greatest number of waiting sequences; one more is refused with status 503."""
    max_running_per_caller: int | None = field(
        default=None, metadata={EXTENSION: "caller-limits", FLAG: "--max-running-per-caller"}
    )
    """Greatest number of sequences of one caller in a step; ``None``: no limit of its own."""
    max_queued_per_caller: int | None = field(
        default=None, metadata={EXTENSION: "caller-limits", FLAG: "--max-queued-per-caller"}
    )
    """Greatest number of waiting sequences of one caller; one more is refused with status 429."""
    caller_weights: Mapping[str, float] = field(default_factory=dict)
    """Id of a caller -> its fair share relative to others, whose weight is 1."""
    watchdog_timeout: float = 300.0
    """Seconds a step may take before the engine reports itself stuck and exits."""
    disable_overlap_schedule: bool = False
    """Plan and launch steps one by one, on an accelerator too."""
    log_interval: int = 40
    """Number of decode steps between two progress lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """The components that compute."""

    attention: str = AUTO
    kernels: str = AUTO
    quantization: str = AUTO
    """``none``: weights stay in ``dtype``; ``auto``: that, unless the checkpoint is quantized."""
    grammar: str = field(
        default=AUTO, metadata={EXTENSION: "structured-outputs", FLAG: "--grammar-backend", OFF: NO_GRAMMARS}
    )
    """``none`` refuses structured outputs."""
    grammar_timeout: float = field(default=10.0, metadata={EXTENSION: "structured-outputs", FLAG: "--grammar-timeout"})
    """Seconds of CPU time that compiling one grammar may take."""
    disable_jump_forward: bool = field(
        default=False, metadata={EXTENSION: "structured-outputs", FLAG: "--disable-jump-forward"}
    )
    """Compute tokens one by one even if a constraint forces them."""
    disable_cuda_graph: bool = False
    """Run decode steps operation by operation, on a CPU too."""
    cuda_graph_max_bs: int = field(default=256, metadata={EXTENSION: "decode-graphs", FLAG: "--cuda-graph-max-bs"})
    """Greatest number of sequences of a decode step that is captured as a graph."""
    piecewise_cuda_graph_max_tokens: int = field(
        default=0, metadata={EXTENSION: "piecewise-graphs", FLAG: "--piecewise-cuda-graph-max-tokens"}
    )
    """Greatest number of tokens of a prefill step that is captured as piecewise graphs; 0: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelOptions:
    """The ranks that share the model."""

    tp_size: int = 1
    """Number of ranks that each hold a part of every layer, on as many devices."""
    executor: str = AUTO
    """The component that starts the ranks."""
    replica: int = 0
    """Number of this engine among the replicas of the model: its devices follow those of the replicas before it."""
    replicas: int = 1
    """Number of replicas that share this machine's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeOptions:
    """Speculative decoding: drafting tokens, so that a step computes several of one sequence."""

    algorithm: str = field(default=NO_SPECULATION, metadata={EXTENSION: "speculation", FLAG: "--speculative-algorithm"})
    """Name of the drafter, in any case."""
    num_draft_tokens: int = 8
    """Greatest number of drafted tokens for one sequence in a step."""
    step_tokens: int = 0
    """Greatest number of tokens of a step with drafts; 0 decides by device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterOptions:
    """The adapters that requests may name."""

    enabled: bool = field(default=False, metadata={EXTENSION: "lora", FLAG: "--enable-lora"})
    """Allow loading adapters while serving; implied if ``paths`` is not empty."""
    paths: tuple[str, ...] = field(default=(), metadata={EXTENSION: "lora", FLAG: "--lora-paths"})
    """``name=folder`` of adapters that are loaded at start, or a folder, whose last part is the name."""
    max_per_batch: int = field(default=8, metadata={EXTENSION: "lora", FLAG: "--max-loras-per-batch"})
    """Greatest number of different adapters in a step; requests with others wait."""
    max_loaded: int | None = field(default=None, metadata={EXTENSION: "lora", FLAG: "--max-loaded-loras"})
    """Greatest number of loaded adapters; ``None``: as many as memory holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The whole configuration of the engine process; plain data, so it is sent to that process as JSON.

    Each group of options is described with this class. The groups are read through it, and not imported.
    """

    model: ModelOptions = field(default_factory=ModelOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    backends: BackendOptions = field(default_factory=BackendOptions)
    parallel: ParallelOptions = field(default_factory=ParallelOptions)
    speculative: SpeculativeOptions = field(default_factory=SpeculativeOptions)
    adapters: AdapterOptions = field(default_factory=AdapterOptions)
    plugins: PluginOptions = field(default_factory=PluginOptions)
    random_seed: int | None = None
    log_level: str = "info"
