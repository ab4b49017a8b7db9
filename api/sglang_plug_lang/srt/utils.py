"""Replacement for ``sglang.srt.utils`` in imports such as ``from sglang.srt.utils import load_image``."""

from __future__ import annotations

from sglang_plug_lang.utils import load_image

__all__ = ["is_hip", "load_image"]


def is_hip() -> bool:
    """Return False: programs ask whether they run on GPUs of AMD, which the frontend language does not use."""
    return False
