"""Tokenizers by name, where SGLang's programs import them from."""

from __future__ import annotations

from typing import Any

from transformers import AutoTokenizer

__all__ = ["get_tokenizer"]


def get_tokenizer(tokenizer_name: str, *, tokenizer_revision: str | None = None) -> Any:
    """Return the tokenizer of a local folder or a hub id. Code in the checkpoint is not run.

    Raises ``OSError`` if there is no such tokenizer.
    """
    return AutoTokenizer.from_pretrained(tokenizer_name, revision=tokenizer_revision or "main")
