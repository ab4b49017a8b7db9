"""Imported before Triton's kernels are defined: where there is no GPU, have them interpreted.

Triton reads the variable when a kernel is defined and not again. ``TRITON_INTERPRET=0`` keeps the compiler.
"""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
