"""Frozen configuration of the server process. No parsing here: ``options`` turns flags and files into it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sglang_plug.config import AUTO, EngineConfig
from sglang_plug.media import MediaLimits

SamplingDefaults = Literal["model", "openai"]
NO_PARSER = "none"
"""The parser that leaves outputs as they are."""
ExpertRecorderMode = Literal["stat", "per_token"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """Files and batches."""

    file_storage_path: str | None = None
    """Folder; ``None``: ``sglang_plug_storage`` in ``$XDG_STATE_HOME`` or ``~/.local/state``."""
    max_file_bytes: int = 200 << 20
    """Largest file that is taken."""
    max_storage_bytes: int = 4 << 30
    """Most bytes of all files and unfinished results together."""
    max_files: int = 10_000
    max_batch_lines: int = 50_000
    """Most requests in one batch."""
    batch_concurrency: int = 32
    """Most sequences of batches that are computed together; never more than what leaves as many places free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSourcesConfig:
    """Where images may come from besides the request itself."""

    domains: tuple[str, ...] = ()
    """Hosts that they are fetched from: ``example.com``, ``*.example.com``, ``*``; none: nothing is fetched."""
    networks: tuple[str, ...] = ()
    """Ranges of addresses that are not public and may be connected to all the same."""
    timeout: float = 10.0
    """Seconds that fetching one may take."""
    folder: str | None = None
    """Folder below which ``file://`` addresses are read; ``None``: none is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """What ``sglang-plug serve`` needs besides the engine's configuration."""

    engine: EngineConfig = field(default_factory=EngineConfig)
    storage: StorageConfig = field(default_factory=StorageConfig)
    media: MediaLimits = field(default_factory=MediaLimits)
    """Of images in one request."""
    media_sources: MediaSourcesConfig = field(default_factory=MediaSourcesConfig)
    host: str = "127.0.0.1"
    port: int = 30000
    """0 lets the system choose; the ready line says which."""
    api_keys: tuple[str, ...] = ()
    """Bearer tokens, one of which every route but the public ones asks for."""
    admin_api_key: str | None = None
    """Bearer token of the administrative routes; ``None``: any of the ``api_keys``."""
    allow_origins: tuple[str, ...] = ()
    """Origins whose pages may call the server from a browser; ``*`` stands for all."""
    strict_model_name: bool = False
    """Refuse requests for another model with 404 instead of serving them whatever they call it."""
    served_model_name: str | None = None
    """The name in ``/v1/models`` and in answers; ``None``: the model path."""
    skip_tokenizer_init: bool = False
    """Serve token ids only: requests bring ``input_ids`` and get ``output_ids``."""
    chat_template: str | None = None
    """Text or file of a Jinja template instead of the model's own."""
    tool_call_parser: str = AUTO
    """Reader of calls in outputs; ``auto``: the one that suits the chat template."""
    reasoning_parser: str = NO_PARSER
    """Reader of what the model thinks before it answers."""
    sampling_defaults: SamplingDefaults = "model"
    """``model``: what a request leaves out comes from ``generation_config.json``."""
    preferred_sampling_params: Mapping[str, Any] = field(default_factory=dict)
    """Native sampling parameters that apply where a request names none."""
    observers: tuple[str, ...] = ()
    """Observers to load although they are off by default."""
    enable_cache_report: bool = False
    """Report cached prompt tokens in ``usage.prompt_tokens_details``."""
    log_requests: bool = False
    max_request_bytes: int = 32 << 20
    """Largest body that is read; more is answered with 413."""
    max_sequences_per_request: int = 1024
    """Most prompts times ``n`` in one request."""
    max_stored_responses: int = 4096
    """Responses remembered for ``previous_response_id``, in the memory of this process; 0 remembers none."""
    max_stored_response_bytes: int = 256 << 20
    """Most bytes of them together; the least recently used are forgotten first."""
    health_timeout: float = 20.0
    """Seconds ``/health_generate`` waits for a token."""
    drain_timeout: float = 30.0
    """Seconds that requests in flight get to finish after SIGTERM."""
    engine_restart: bool = False
    """Start the engine again if it dies, instead of ending the server."""
    header_timeout: float = 30.0
    """Seconds a client may take to send the headers of a request; then its connection is closed."""
    body_timeout: float = 60.0
    """Seconds a client may take to send a request's body."""
    send_timeout: float = 60.0
    """Seconds a client may take nothing of an answer that waits for it; then the request is aborted and the connection
    closed."""
    skip_server_warmup: bool = False
    expert_distribution_recorder_mode: ExpertRecorderMode | None = None
    """``stat`` counts how often each expert is chosen, ``per_token`` also keeps every token's choices; ``None``: the
    routes that record them refuse."""
    expert_distribution_dir: str = "expert_distribution"
    """Folder that records of chosen experts are written to."""
    weight_version: str = "default"
    allow_update_from: tuple[str, ...] = ()
    """Folders below which ``/update_weights_from_disk`` may read; none: anything the server can read."""
