"""``sglang.api`` on top of sglang-plug."""

from __future__ import annotations

from sglang_plug_lang.lang.api import *  # noqa: F403
