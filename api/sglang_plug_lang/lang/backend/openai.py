"""Replacement for ``sglang.lang.backend.openai``."""

from __future__ import annotations

from sglang_plug_lang.backends.base import TokenUsage
from sglang_plug_lang.backends.openai import OpenAI

__all__ = ["OpenAI", "TokenUsage"]
