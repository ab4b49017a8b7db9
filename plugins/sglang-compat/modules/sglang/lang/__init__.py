"""``sglang.lang`` on top of sglang-plug."""

from __future__ import annotations
