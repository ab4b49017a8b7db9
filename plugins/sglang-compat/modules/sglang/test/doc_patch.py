"""``sglang.test.doc_patch`` on top of sglang-plug."""

from __future__ import annotations

from sglang_plug_lang.test.doc_patch import *  # noqa: F403
