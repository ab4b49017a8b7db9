"""``sglang.utils`` on top of sglang-plug."""

from __future__ import annotations

from sglang_plug_lang.utils import *  # noqa: F403
