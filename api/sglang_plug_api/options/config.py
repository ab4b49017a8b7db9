"""Frozen configuration of the server process. ``options.parsing`` builds it from flags, environment and files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sglang_plug.config import AUTO, EngineConfig
from sglang_plug.contracts.text.media import MediaLimits

SamplingDefaultsSource = Literal["model", "openai"]
NO_PARSER = "none"
"""Name that switches a parser off: outputs stay as they are."""
ServerRole = Literal["prefill", "decode"]
DEFAULT_PREFILL_PORT = 8998
ExpertRecorderMode = Literal["stat", "per_token"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """Storage of files and batches."""

    file_storage_path: str | None = None
    """Folder; ``None``: ``sglang_plug_storage`` in ``$XDG_STATE_HOME`` or ``~/.local/state``."""
    max_file_bytes: int = 200 << 20
    """Largest file that may be uploaded."""
    max_storage_bytes: int = 4 << 30
    """Maximum number of bytes of all files and unfinished results together."""
    max_files: int = 10_000
    max_batch_lines: int = 50_000
    """Maximum number of requests in one batch."""
    batch_concurrency: int = 32
    """Maximum of batch sequences computed together; at least as many running slots stay free for other requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSourcesConfig:
    """Sources of images besides the request itself."""

    domains: tuple[str, ...] = ()
    """Hosts that images are fetched from: ``example.com``, ``*.example.com``, ``*``; empty: nothing is fetched."""
    networks: tuple[str, ...] = ()
    """Private address ranges that may be connected to all the same."""
    timeout: float = 10.0
    """Seconds that fetching one image may take."""
    folder: str | None = None
    """Folder below which ``file://`` addresses are read; ``None``: no files are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Configuration of ``sglang-plug serve``, which includes the engine's."""

    engine: EngineConfig = field(default_factory=EngineConfig)
    store: str = "sqlite"
    """Name of the store that keeps files, batches and stored responses."""
    storage: StorageConfig = field(default_factory=StorageConfig)
    media: MediaLimits = field(default_factory=MediaLimits)
    """Limits for the images of one request."""
    media_sources: MediaSourcesConfig = field(default_factory=MediaSourcesConfig)
    host: str = "127.0.0.1"
    port: int = 30000
    """0 lets the system choose; the ready line has the port."""
    api_keys: tuple[str, ...] = ()
    """Bearer tokens; every route except the public ones needs one of them."""
    admin_api_key: str | None = None
    """Bearer token of the administrative routes; ``None``: any of the ``api_keys``."""
    shared_storage: bool = False
    """Let every API key use the files, batches, responses and running requests of every other."""
    fairness_key: str = "auto"
    """The part of a request that identifies its caller for fair scheduling: ``api-key``, ``user`` or ``header:NAME``;
    ``auto``: the API key, and ``user`` on a server without API keys."""
    key_weights: tuple[str, ...] = ()
    """``KEY=WEIGHT``: the fair share of a caller relative to others, whose weight is 1."""
    tenant_isolation: bool = False
    """Share the prefix cache only between requests with the same API key."""
    allow_origins: tuple[str, ...] = ()
    """Origins whose pages may call the server from a browser; ``*`` stands for all."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names that requests may name, see ``hosts``; empty: on loopback this machine's own, otherwise any."""
    strict_model_name: bool = False
    """Refuse requests for another model with 404 instead of serving them under any name."""
    served_model_name: str | None = None
    """The name in ``/v1/models`` and in responses; ``None``: the model path."""
    skip_tokenizer_init: bool = False
    """Serve token ids only: requests bring ``input_ids`` and get ``output_ids``."""
    chat_template: str | None = None
    """Text or file of a Jinja template instead of the model's own."""
    tool_call_parser: str = AUTO
    """Parser of tool calls in outputs; ``auto``: the one that suits the chat template."""
    reasoning_parser: str = NO_PARSER
    """Parser of the reasoning that a model writes before its answer."""
    sampling_defaults: SamplingDefaultsSource = "model"
    """``model``: parameters that a request leaves out come from ``generation_config.json``."""
    preferred_sampling_params: Mapping[str, Any] = field(default_factory=dict)
    """Native sampling parameters that apply where a request sets none."""
    observers: tuple[str, ...] = ()
    """Observers to load although they are off by default."""
    enable_cache_report: bool = False
    """Report cached prompt tokens in ``usage.prompt_tokens_details``."""
    log_requests: bool = False
    max_request_bytes: int = 32 << 20
    """Largest body that is read; larger ones are answered with 413."""
    max_sequences_per_request: int = 1024
    """Maximum number of prompts times ``n`` in one request."""
    max_stored_responses: int = 4096
    """Responses stored for ``previous_response_id``, in the memory of this process; 0 disables storage."""
    max_stored_response_bytes: int = 256 << 20
    """Maximum number of bytes of all stored responses; the least recently used are removed first."""
    health_timeout: float = 20.0
    """Seconds ``/health_generate`` waits for a token."""
    drain_timeout: float = 30.0
    """Seconds that requests in flight get to finish after SIGTERM."""
    engine_restart: bool = False
    """Start the engine again if it dies, instead of ending the server."""
    deployment: str = "process"
    """Name of the deployment that runs the engines."""
    replicas: int = 1
    """Number of engines behind this server; each of several is started again if it dies."""
    prefill_replicas: int = 0
    """Number of further engines, which compute the prompts for the others."""
    role: ServerRole | None = None
    """``prefill``: compute prompts for decode servers; ``decode``: generate from what prefill servers compute."""
    prefill_port: int = DEFAULT_PREFILL_PORT
    """Port of a prefill server that decode servers connect to; 0 lets the system choose."""
    prefill_servers: tuple[str, ...] = ()
    """``HOST:PORT`` of the servers that compute the prompts of a decode server."""
    routing_policy: str = "prefix-affinity"
    """Chooses the replica of a request."""
    max_connections: int = 16384
    """Maximum number of open connections, if the limit of open files allows it; beyond that, idle ones are closed."""
    header_timeout: float = 30.0
    """Seconds a client may take to send the headers of a request; then its connection is closed."""
    body_timeout: float = 60.0
    """Seconds a client may take to send a request's body."""
    send_timeout: float = 60.0
    """Seconds a client may leave a waiting response unread; then the request is aborted and the connection closed."""
    skip_server_warmup: bool = False
    expert_distribution_recorder_mode: ExpertRecorderMode | None = None
    """``stat`` counts how often each expert is chosen, ``per_token`` also keeps the choices of every token; ``None``:
    the routes that record experts refuse."""
    expert_distribution_dir: str = "expert_distribution"
    """Folder that expert records are written to."""
    weight_version: str = "default"
    allow_update_from: tuple[str, ...] = ()
    """Folders below which ``/update_weights_from_disk`` may read; empty: any folder the server can read."""

    @property
    def engines(self) -> int:
        """Number of all engines."""
        return self.replicas + self.prefill_replicas
