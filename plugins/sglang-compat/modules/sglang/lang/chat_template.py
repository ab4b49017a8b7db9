"""``sglang.lang.chat_template`` on top of sglang-plug."""

from __future__ import annotations

from sglang_plug_lang.lang.chat_template import *  # noqa: F403
