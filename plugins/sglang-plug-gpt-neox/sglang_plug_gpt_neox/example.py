"""A small configuration for ``sglang-plug plugins test``."""

from __future__ import annotations

from typing import Any

from transformers import GPTNeoXConfig


def tiny() -> dict[str, Any]:
    """Return the arguments of ``check_model``."""
    config = GPTNeoXConfig(
        vocab_size=96,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=512,
        rotary_pct=0.5,
    )
    return {"config": config}
