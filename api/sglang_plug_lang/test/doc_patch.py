"""Replacement for ``sglang.test.doc_patch`` in ``from sglang.test.doc_patch import launch_server_cmd``."""

from __future__ import annotations

from sglang_plug_lang.utils import launch_server_cmd

__all__ = ["launch_server_cmd"]
