"""Replacement for ``sglang.lang.backend.base_backend``."""

from __future__ import annotations

from sglang_plug_lang.backends.base import Backend as BaseBackend

__all__ = ["BaseBackend"]
