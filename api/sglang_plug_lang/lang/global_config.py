"""Replacement for ``sglang.lang.global_config``."""

from __future__ import annotations

from sglang_plug_lang.default import GlobalConfig, global_config

__all__ = ["GlobalConfig", "global_config"]
