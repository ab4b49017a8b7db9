"""``sglang.lang.interpreter`` on top of sglang-plug."""

from __future__ import annotations

from sglang_plug_lang.lang.interpreter import *  # noqa: F403
