"""Messages between the API and the engine: plain data, encoded as msgpack, never pickled."""

from __future__ import annotations

from typing import Any

import msgspec

from sglang_plug.config import EngineConfig
from sglang_plug.contracts.request import Output, Request
from sglang_plug.contracts.serving.observer import StepStats


class Submit(msgspec.Struct, tag="submit", frozen=True):
    """Serve a request."""

    request: Request


class Abort(msgspec.Struct, tag="abort", frozen=True):
    """Drop requests, wherever they are; unknown ids are ignored."""

    ids: tuple[str, ...]


class Pause(msgspec.Struct, tag="pause", frozen=True):
    """Compute nothing more of these requests until ``Resume``; unknown ids are ignored."""

    ids: tuple[str, ...]


class Resume(msgspec.Struct, tag="resume", frozen=True):
    """Continue paused requests; unknown ids are ignored."""

    ids: tuple[str, ...]


class Control(msgspec.Struct, tag="control", frozen=True):
    """Run a control call between two steps."""

    number: int
    name: str
    arguments: dict[str, Any]


class Close(msgspec.Struct, tag="close", frozen=True):
    """Stop the engine."""


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """The engine can serve."""

    info: dict[str, Any]


class StepOutputs(msgspec.Struct, tag="outputs", frozen=True):
    """The outputs of a step, or of a refused request."""

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
    """The input with which the engine process is started."""

    config: EngineConfig
    fingerprint: list[tuple[str, str, str]]
    requests: str
    outputs: str
    alive: str = ""
    """A file that the engine's process touches every second once it serves."""


def check_sendable(value: object, expected: Any = Any) -> None:
    """Raise ``TypeError`` unless a message may contain ``value``, and another process can read it as ``expected``."""
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=expected)
    except (msgspec.MsgspecError, OverflowError) as error:
        raise TypeError(str(error)) from error


ToEngine = Submit | Abort | Pause | Resume | Control | Close
FromEngine = Ready | StepOutputs | Reply | Failed
