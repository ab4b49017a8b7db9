"""``sglang.lang.backend.base_backend`` on top of sglang-plug."""

from __future__ import annotations

from sglang_plug_lang.lang.backend.base_backend import *  # noqa: F403
