"""The deployment ``thread``. Importing it imports torch."""

from __future__ import annotations

from sglang_plug import EngineClient, EngineLaunch
from sglang_plug.clients.thread_client import ThreadClient


def deploy(launch: EngineLaunch, settings: None) -> EngineClient:
    """Return the client of an engine in a thread of this process, not started."""
    return ThreadClient(launch.config, launch.plugins)
