"""How many tokens a sequence, and how many tokens and sequences a step may have."""

from __future__ import annotations

from typing import Any

import torch

from sglang_plug.config import ConfigError, ScheduleOptions
from sglang_plug.model import Model

DEFAULT_CONTEXT = 4096
DEFAULT_CHUNK = {"cpu": 2048}
DEFAULT_RUNNING = {"cpu": 128}
ACCELERATOR_CHUNK, ACCELERATOR_RUNNING = 8192, 256
LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
"""Names that configurations have for the longest context."""


def context_length(wanted: int | None, model_class: type[Model], config: Any) -> int:
    """Tokens of the longest sequence. Raises ``ConfigError`` if more are wanted than the model has positions for."""
    text = model_class.text_config(config)
    stated = next((value for name in LENGTHS if (value := getattr(text, name, None))), DEFAULT_CONTEXT)
    own = model_class.context_length(config) or stated
    if wanted is not None and wanted > own:
        raise ConfigError(
            f"--context-length {wanted} is longer than the model's {own} tokens; if the model can do it, "
            f"say so with --json-model-override-args '{{\"max_position_embeddings\": {wanted}}}'"
        )
    return int(own if wanted is None else wanted)


def chunk(options: ScheduleOptions, device: torch.device, longest: int) -> int:
    """Most new tokens of one step; below 0: as many as the longest sequence has."""
    wanted = options.chunked_prefill_size or DEFAULT_CHUNK.get(device.type, ACCELERATOR_CHUNK)
    return wanted if wanted > 0 else longest


def running(options: ScheduleOptions, device: torch.device) -> int:
    """Most sequences of one step."""
    return options.max_running_requests or DEFAULT_RUNNING.get(device.type, ACCELERATOR_RUNNING)
