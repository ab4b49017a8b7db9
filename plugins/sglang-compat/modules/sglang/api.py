"""``sglang.api`` on top of sglang-plug."""

from __future__ import annotations

from sglang_plug_lang.lang.api import *  # noqa: F403


def __getattr__(name: str) -> object:
    if name != "Engine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sglang_plug_api import Engine

    return Engine
