"""``sglang.lang.ir`` on top of sglang-plug."""

from __future__ import annotations

from sglang_plug_lang.lang.ir import *  # noqa: F403
