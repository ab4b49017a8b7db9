"""``sglang.srt.constrained`` on top of sglang-plug."""

from __future__ import annotations

from sglang_plug_lang.srt.constrained import *  # noqa: F403
