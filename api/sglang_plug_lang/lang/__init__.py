"""Modules under the names of SGLang's ``sglang.lang``."""

from __future__ import annotations
