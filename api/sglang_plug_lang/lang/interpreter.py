"""Replacement for ``sglang.lang.interpreter``."""

from __future__ import annotations

from sglang_plug_lang.state import ForkGroup as ProgramStateGroup
from sglang_plug_lang.state import ProgramState

__all__ = ["ProgramState", "ProgramStateGroup"]
