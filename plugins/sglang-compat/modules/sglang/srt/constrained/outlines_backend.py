"""``sglang.srt.constrained.outlines_backend`` on top of sglang-plug."""

from __future__ import annotations

from sglang_plug_lang.srt.constrained.outlines_backend import *  # noqa: F403
