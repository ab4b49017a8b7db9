"""Constraints under the names of SGLang's ``sglang.srt.constrained``."""

from __future__ import annotations

from sglang_plug_lang.schema_regex import build_regex_from_object

__all__ = ["build_regex_from_object"]
