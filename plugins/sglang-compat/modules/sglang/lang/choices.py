"""``sglang.lang.choices`` on top of sglang-plug."""

from __future__ import annotations

from sglang_plug_lang.lang.choices import *  # noqa: F403
