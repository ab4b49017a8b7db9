"""Numbers on their way between host and device: what the engine takes of ``sglang_plug.transfer``."""

from __future__ import annotations

from sglang_plug.transfer import Fetched, pinned, send, upload

__all__ = ["Fetched", "pinned", "send", "upload"]
