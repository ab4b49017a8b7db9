"""``sglang.lang.global_config`` on top of sglang-plug."""

from __future__ import annotations

from sglang_plug_lang.lang.global_config import *  # noqa: F403
