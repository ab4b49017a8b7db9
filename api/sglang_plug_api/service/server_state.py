"""The facts about a server that change while it runs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class ServerState:
    """The facts about a server that change while it runs. The start makes it; updates of the weights change it, too."""

    weight_version: str
    """Name of the weights that are served."""
    warming_up: bool = False
    """True until the server's own first request has ended."""
    startup_time: float | None = None
    """Seconds from the start of the server until it was ready; ``None``: it is not ready yet."""
    started: int = field(default_factory=lambda: int(time.time()))
    """``time.time()`` when the engine had started, in seconds."""
