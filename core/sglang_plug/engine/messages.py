"""What crosses the line between the API and the engine: plain data, encoded as msgpack, never pickled."""

from __future__ import annotations

from typing import Any

import msgspec

from sglang_plug.config import EngineConfig
from sglang_plug.policy import StepStats
from sglang_plug.request import Output, Request


class Submit(msgspec.Struct, tag="submit", frozen=True):
    """Serve a request."""

    request: Request


class Abort(msgspec.Struct, tag="abort", frozen=True):
    """Drop requests, wherever they are; unknown ids are ignored."""

    ids: tuple[str, ...]


class Control(msgspec.Struct, tag="control", frozen=True):
    """Run a control call between two steps."""

    number: int
    name: str
    arguments: dict[str, Any]


class Close(msgspec.Struct, tag="close", frozen=True):
    """Stop."""


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """The engine can serve."""

    info: dict[str, Any]


class News(msgspec.Struct, tag="news", frozen=True):
    """What came of a step, or of a refusal."""

    outputs: list[Output]
    stats: StepStats | None = None


class Reply(msgspec.Struct, tag="reply", frozen=True):
    """The answer to a control call."""

    number: int
    value: Any = None
    error: str | None = None
    status: int = 200


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """The engine cannot serve; the last message."""

    message: str
    configuration: bool = False
    """True if the user's configuration is to blame."""


class Launch(msgspec.Struct, frozen=True):
    """What the engine process is started with."""

    config: EngineConfig
    fingerprint: list[tuple[str, str, str]]
    requests: str
    outputs: str
    alive: str = ""
    """A file that the engine's process touches every second once it serves."""


ToEngine = Submit | Abort | Control | Close
FromEngine = Ready | News | Reply | Failed
