"""Triton kernels, each module for one kind of operation."""

from __future__ import annotations

from sglang_plug_backends.triton import interpreter as interpreter  # before any kernel is defined
