"""Replacement for ``sglang.test.test_utils`` in ``from sglang.test.test_utils import is_in_ci``."""

from __future__ import annotations

from sglang_plug_lang.utils import is_in_ci

__all__ = ["is_in_ci"]
