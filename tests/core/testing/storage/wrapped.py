"""A layer over the built-in store, to be given faults."""

from __future__ import annotations

from pathlib import Path

from sglang_plug import StoreContext, StoreWrapper
from sglang_plug_api.stores.sqlite.example import open_store


class Wrapped(StoreWrapper):
    """The built-in store, whose answers a subclass changes."""

    def __init__(self, folder: Path, context: StoreContext) -> None:
        super().__init__(open_store(folder, context))
