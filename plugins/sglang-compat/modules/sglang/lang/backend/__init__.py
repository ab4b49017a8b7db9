"""``sglang.lang.backend`` on top of sglang-plug."""

from __future__ import annotations
