"""``sglang.lang.backend.runtime_endpoint`` on top of sglang-plug."""

from __future__ import annotations

from sglang_plug_lang.lang.backend.runtime_endpoint import *  # noqa: F403
