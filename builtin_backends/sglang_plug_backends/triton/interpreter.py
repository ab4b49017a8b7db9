"""Import hook that enables Triton's interpreter before kernels are defined on a machine without a GPU.

Triton reads the variable when a kernel is defined and not again. ``TRITON_INTERPRET=0`` keeps the compiler.
"""

from __future__ import annotations

import importlib
import os

import torch
import triton
import triton.language as tl

LIBRARY = ("triton.language.standard", "triton.language.random", "triton.language")
"""Modules in which Triton defines kernels (``tl.zeros``, ``tl.sum``); the last re-exports the others."""

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    # If Triton was imported earlier, for example by torch, its library is defined for the compiler.
    if triton.knobs.runtime.interpret and isinstance(tl.zeros, triton.JITFunction):
        for name in LIBRARY:
            importlib.reload(importlib.import_module(name))
