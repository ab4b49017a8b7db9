"""Modules under the names that SGLang's documents import from its tests."""

from __future__ import annotations
