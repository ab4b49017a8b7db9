"""The deployment ``process``."""

from __future__ import annotations

from sglang_plug import EngineClient, EngineLaunch
from sglang_plug.clients.process_client import ProcessClient


def deploy(launch: EngineLaunch, settings: None) -> EngineClient:
    """Return the client of an engine in a process of its own, not started."""
    return ProcessClient(launch.config, launch.plugins, launch.cores)
