"""Replacement for ``sglang.srt.constrained.outlines_backend``."""

from __future__ import annotations

from sglang_plug_lang.schema_regex import build_regex_from_object

__all__ = ["build_regex_from_object"]
