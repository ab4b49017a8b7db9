"""Fixtures of tests that need a CPU with the instructions and a compiler."""

from __future__ import annotations

from tests.builtin_backends.avx512.conftest import compiled

__all__ = ["compiled"]
