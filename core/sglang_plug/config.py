"""Frozen configuration of the engine. No parsing here: the API package turns flags, files and environment into this.

Every option that may be ``"auto"`` is turned into a value once, by ``engine.resolve``; nothing writes to a
configuration after construction (``dataclasses.replace`` makes a new one).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

AUTO = "auto"
NO_GRAMMARS = "none"
"""The grammar backend that refuses every constraint."""
NO_QUANTIZATION = "none"
"""Every matrix in the model's dtype."""
NO_SPECULATION = "none"
"""Every token in a step of its own."""


class ConfigError(ValueError):
    """The configuration cannot be served; the message says what was wrong and what to do."""


class CheckpointNotFoundError(ConfigError):
    """Neither here nor elsewhere is there a model of the name that was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginOptions:
    """Which plugins are loaded and how conflicts are settled. Crosses to the engine process unchanged."""

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
    """Every plugin failure stops the start."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Component name -> option -> value, from ``--set name.key=value`` and YAML."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """What is served."""

    path: str = AUTO
    """A local folder or a hub id; ``auto`` asks the plugins (the embedded demo model)."""
    revision: str | None = None
    task: str = AUTO
    """``generate``, or one of the pooling tasks ``embed``, ``classify``, ``rerank``; ``auto`` takes what the model
    is made for."""
    impl: str = AUTO
    """``native``: only a model declared under the checkpoint's architecture; ``auto``: that, or what the plugins
    choose instead; otherwise the name of a generic model."""
    checkpoint_format: str = AUTO
    load_format: str = AUTO
    dtype: str = AUTO
    device: str = AUTO
    context_length: int | None = None
    """Tokens; ``None`` takes the checkpoint's."""
    tokenizer_path: str | None = None
    """A local folder; ``None``: the model's."""
    tokenizer_mode: str = AUTO
    media_processor: str = AUTO
    """Makes prompts of tokens and images, for models that see."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Replaces fields of ``config.json`` (``--json-model-override-args``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """The KV pool and who may reuse it."""

    page_size: int = 1
    """KV slots allocated together."""
    max_total_tokens: int | None = None
    """KV slots in the pool; ``None`` sizes it from free memory."""
    mem_fraction_static: float | None = None
    """On an accelerator, the share of its memory for everything together: weights, KV pool, the largest step, graphs;
    on the host, the share that the pool takes of what is free once the weights are loaded. ``None``: 0.9 and 0.5."""
    max_states: int | None = None
    """Recurrent states in memory, of running sequences and of prefixes that are remembered, in models that have them;
    ``None`` sizes their pool from free memory."""
    kv_dtype: str = AUTO
    """What keys and values are kept in: ``fp8_e4m3``, ``fp8_e5m2``, ``bfloat16``, ``float16`` or ``float32``; ``auto``:
    what the checkpoint says, and the model's dtype if it does not."""
    prefix_cache: str = AUTO
    eviction_policy: str = "lru"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """Who computes when."""

    policy: str = "fcfs"
    chunked_prefill_size: int = 0
    """Most new tokens in one step; 0 decides by device, -1 switches chunking off."""
    max_running_requests: int | None = None
    max_queued_requests: int = 4096
    """Sequences waiting for a place; one more is refused with status 503."""
    watchdog_timeout: float = 300.0
    """Seconds a step may take before the engine reports itself stuck and exits."""
    disable_overlap_schedule: bool = False
    """Steps are planned and launched one by one, on an accelerator too."""
    log_interval: int = 40
    """Decode steps between two progress lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """Which components compute."""

    attention: str = AUTO
    kernels: str = AUTO
    quantization: str = AUTO
    """``none``: weights stay in ``dtype``; ``auto``: that, unless the checkpoint is quantized."""
    grammar: str = AUTO
    """``none`` refuses structured outputs."""
    grammar_timeout: float = 10.0
    """Seconds that compiling one grammar may take."""
    disable_jump_forward: bool = False
    """The model computes tokens one by one even where a constraint leaves it no choice."""
    disable_cuda_graph: bool = False
    """Decode steps are run operation by operation, on a CPU too."""
    cuda_graph_max_bs: int = 256
    """Most sequences of a decode step that is captured as a graph."""
    piecewise_cuda_graph_max_tokens: int = 0
    """Most tokens of a step with prompts that is captured in pieces; 0: none is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelOptions:
    """Who shares the model."""

    tp_size: int = 1
    """Ranks that each hold a part of every layer, on as many devices."""
    executor: str = AUTO
    """What starts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeOptions:
    """Whether tokens are guessed, so that a step computes several of one sequence."""

    algorithm: str = NO_SPECULATION
    """The drafter; in capitals, too."""
    num_draft_tokens: int = 8
    """Most guesses for one sequence in a step."""
    step_tokens: int = 0
    """Most tokens of a step with guesses; 0 decides by device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterOptions:
    """Which adapters requests may name."""

    enabled: bool = False
    """Adapters may be loaded while serving; so they may where ``paths`` names some."""
    paths: tuple[str, ...] = ()
    """``name=folder`` of those that are loaded at start, or a folder, whose last part is the name."""
    most_in_step: int = 8
    """Different ones in one step; requests with others wait."""
    most_loaded: int | None = None
    """``None``: as many as memory holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything the engine process needs; plain data, so it crosses the process line as msgpack."""

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
