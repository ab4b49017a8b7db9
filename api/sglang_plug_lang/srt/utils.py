"""``from sglang.srt.utils import load_image``, by this package's name."""

from __future__ import annotations

from sglang_plug_lang.utils import load_image

__all__ = ["load_image"]
