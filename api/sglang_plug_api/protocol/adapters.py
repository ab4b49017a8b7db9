"""Bodies of ``/load_lora_adapter`` and ``/unload_lora_adapter``."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from .base import MAX_NAME, RequestBody
from .misplaced import ADAPTERS, Remedies
from .weights import PRINTABLE


class UnloadAdapterBody(RequestBody):
    """``POST /unload_lora_adapter``."""

    lora_name: str = Field(min_length=1, max_length=MAX_NAME, pattern=PRINTABLE)
    lora_id: str | None = None
    """Accepted for clients of SGLang: adapters are known by their names."""
    lora_int_id: int | None = None
    """Accepted for clients of vLLM."""


class LoadAdapterBody(UnloadAdapterBody):
    """``POST /load_lora_adapter``: an adapter in a folder of the server's machine."""

    misplaced: ClassVar[Remedies] = ADAPTERS

    lora_path: str = Field(min_length=1, max_length=4096, pattern=PRINTABLE)
    pinned: bool = False
    """Accepted for older clients: every loaded adapter stays loaded."""
