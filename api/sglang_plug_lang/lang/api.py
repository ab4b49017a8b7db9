"""Replacement for ``sglang.lang.api``: the functions that programs are written with."""

from __future__ import annotations

from sglang_plug_lang import (
    OpenAI,
    Runtime,
    RuntimeEndpoint,
    assistant,
    assistant_begin,
    assistant_end,
    flush_cache,
    function,
    gen,
    gen_int,
    gen_string,
    get_server_info,
    image,
    select,
    separate_reasoning,
    set_default_backend,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
)

__all__ = [
    "OpenAI",
    "Runtime",
    "RuntimeEndpoint",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_info",
    "image",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "user",
    "user_begin",
    "user_end",
]


def __getattr__(name: str) -> object:
    if name == "Engine":
        raise ImportError("the engine is not part of the frontend language: import it as sglang_plug_api.Engine")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
