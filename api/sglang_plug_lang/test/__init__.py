"""Where SGLang's documents find what their own tests use."""

from __future__ import annotations
