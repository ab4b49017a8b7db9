"""A wrapper of the built-in store, for planted faults."""

from __future__ import annotations

from pathlib import Path

from sglang_plug import StoreContext, StoreWrapper
from sglang_plug_api.stores.sqlite.example import open_store


class Wrapped(StoreWrapper):
    """The built-in store, of which subclasses change the results."""

    def __init__(self, folder: Path, context: StoreContext) -> None:
        super().__init__(open_store(folder, context))
