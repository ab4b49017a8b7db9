"""Frozen configuration of the server process. No parsing here: ``options`` turns flags and files into it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sglang_plug.config import AUTO, EngineConfig

SamplingDefaults = Literal["model", "openai"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """What ``sglang-plug serve`` needs besides the engine's configuration."""

    engine: EngineConfig = field(default_factory=EngineConfig)
    host: str = "127.0.0.1"
    port: int = 30000
    """0 lets the system choose; the ready line says which."""
    api_key: str | None = None
    """Bearer token that every route but the public ones asks for."""
    admin_api_key: str | None = None
    """Bearer token of the administrative routes; ``None``: the ``api_key``."""
    strict_model_name: bool = False
    """Refuse requests for another model with 404 instead of serving them whatever they call it."""
    served_model_name: str | None = None
    """The name in ``/v1/models`` and in answers; ``None``: the model path."""
    tokenizer_path: str | None = None
    """A folder or hub id; ``None``: the model's."""
    tokenizer_mode: str = AUTO
    skip_tokenizer_init: bool = False
    """Serve token ids only: requests bring ``input_ids`` and get ``output_ids``."""
    chat_template: str | None = None
    """Text or file of a Jinja template instead of the model's own."""
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
    health_timeout: float = 20.0
    """Seconds ``/health_generate`` waits for a token."""
    drain_timeout: float = 30.0
    """Seconds that requests in flight get to finish after SIGTERM."""
    body_timeout: float = 60.0
    """Seconds a client may take to send a request's body."""
    skip_server_warmup: bool = False
    weight_version: str = "default"
