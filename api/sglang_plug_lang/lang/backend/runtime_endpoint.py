"""Replacement for ``sglang.lang.backend.runtime_endpoint``."""

from __future__ import annotations

from sglang_plug_lang.backends.runtime import Runtime, RuntimeEndpoint

__all__ = ["Runtime", "RuntimeEndpoint"]
