"""``sglang.srt.utils`` on top of sglang-plug."""

from __future__ import annotations

from sglang_plug_lang.srt.utils import *  # noqa: F403
