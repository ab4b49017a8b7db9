"""The server around a model, as its routes see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sglang_plug import Observer
from sglang_plug_api.service.server_state import ServerState
from sglang_plug_api.stores.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """The parts of a server, besides the model, that routes need."""

    storage: Storage
    """Files, batches and stored responses."""
    state: ServerState
    observers: Mapping[str, Observer]
    """Maps names to loaded observers."""
    plugins: Mapping[str, Any]
    """The table that ``/plugins`` shows."""
