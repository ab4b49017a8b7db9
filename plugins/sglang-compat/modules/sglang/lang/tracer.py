"""``sglang.lang.tracer`` on top of sglang-plug."""

from __future__ import annotations

from sglang_plug_lang.lang.tracer import *  # noqa: F403
