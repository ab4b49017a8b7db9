"""``sglang.lang.backend.openai`` on top of sglang-plug."""

from __future__ import annotations

from sglang_plug_lang.lang.backend.openai import *  # noqa: F403
