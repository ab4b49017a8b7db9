"""Imported before Triton's kernels are defined: where there is no GPU, have them interpreted.

Triton reads the variable when a kernel is defined and not again. ``TRITON_INTERPRET=0`` keeps the compiler.
"""

from __future__ import annotations

import importlib
import os

import torch
import triton
import triton.language as tl

LIBRARY = ("triton.language.standard", "triton.language.random", "triton.language")
"""Where Triton defines kernels of its own (``tl.zeros``, ``tl.sum``); the last hands those of the others on."""

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    # Whoever imported Triton first, torch for example, had its library defined for the compiler.
    if triton.knobs.runtime.interpret and isinstance(tl.zeros, triton.JITFunction):
        for name in LIBRARY:
            importlib.reload(importlib.import_module(name))
