"""``sglang.test.test_utils`` on top of sglang-plug."""

from __future__ import annotations

from sglang_plug_lang.test.test_utils import *  # noqa: F403
