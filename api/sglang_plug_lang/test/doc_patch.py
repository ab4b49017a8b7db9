"""``from sglang.test.doc_patch import launch_server_cmd``, by this package's name."""

from __future__ import annotations

from sglang_plug_lang.utils import launch_server_cmd

__all__ = ["launch_server_cmd"]
