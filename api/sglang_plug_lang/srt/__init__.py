"""Modules under the names that programs for SGLang import."""

from __future__ import annotations
