"""The limits of the scheduler: tokens of a sequence, tokens of a step and sequences of a step."""

from __future__ import annotations

from typing import Any

import torch

from sglang_plug.config import ConfigError, ScheduleOptions
from sglang_plug.contracts.model.model import Model

DEFAULT_CONTEXT = 4096
DEFAULT_CHUNK = {"cpu": 2048}
DEFAULT_RUNNING = {"cpu": 128}
ACCELERATOR_CHUNK, ACCELERATOR_RUNNING = 8192, 256
LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
"""Names that configurations have for the longest context."""


def context_length(configured: int | None, model_class: type[Model], config: Any) -> int:
    """Return the number of tokens of the longest sequence.

    Raises ``ConfigError`` if ``configured`` is more than the model has positions for.
    """
    text = model_class.text_config(config)
    stated = next((value for name in LENGTHS if (value := getattr(text, name, None))), DEFAULT_CONTEXT)
    own = model_class.context_length(config) or stated
    if configured is not None and configured > own:
        raise ConfigError(
            f"--context-length {configured} is longer than the model's {own} tokens; if the model can do it, "
            f"say so with --json-model-override-args '{{\"max_position_embeddings\": {configured}}}'"
        )
    return int(own if configured is None else configured)


def chunk_size(options: ScheduleOptions, device: torch.device, longest: int) -> int:
    """Return the largest number of new tokens in one step; a setting below 0 means ``longest``."""
    size = options.chunked_prefill_size or DEFAULT_CHUNK.get(device.type, ACCELERATOR_CHUNK)
    return size if size > 0 else longest


def running(options: ScheduleOptions, device: torch.device) -> int:
    """Return the largest number of sequences in one step."""
    return options.max_running_requests or DEFAULT_RUNNING.get(device.type, ACCELERATOR_RUNNING)
