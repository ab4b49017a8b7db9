"""Replacement for ``sglang.srt.utils`` in imports such as ``from sglang.srt.utils import load_image``."""

from __future__ import annotations

from sglang_plug_lang.utils import load_image

__all__ = ["load_image"]
