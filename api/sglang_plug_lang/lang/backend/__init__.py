"""Backends under the names of SGLang's ``sglang.lang.backend``."""

from __future__ import annotations
