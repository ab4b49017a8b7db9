"""Messages and keys between an engine's server and the clients on other processes or machines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import msgspec

from sglang_plug.config import ConfigError, EngineConfig
from sglang_plug.contracts.serving.engine_client import EngineLaunch
from sglang_plug.engine.messages.api_messages import (
    Abort,
    Close,
    Control,
    Failed,
    Pause,
    Ready,
    Reply,
    Resume,
    StepOutputs,
    Submit,
)
from sglang_plug.plugins.installed.fingerprint import check_same_plugins
from sglang_plug.plugins.registry import Plugins

VERSION = 1
"""Version of these messages; both sides must have the same."""
Fingerprint = list[tuple[str, str, str]]


class Connect(msgspec.Struct, tag="hello", frozen=True):
    """The first message of a client, answered by ``Ready`` or ``Failed``."""

    fingerprint: Fingerprint
    version: int = VERSION


class Kill(msgspec.Struct, tag="kill", frozen=True):
    """End the engine at once."""


class Heartbeat(msgspec.Struct, tag="alive", frozen=True):
    """A heartbeat of the server, every second."""

    heartbeat_age: float
    """Seconds since the engine has given one."""


ToServer = Connect | Submit | Abort | Pause | Resume | Control | Close | Kill
ToClient = Ready | StepOutputs | Reply | Failed | Heartbeat


class _SentLaunch(msgspec.Struct, frozen=True):
    config: EngineConfig
    fingerprint: Fingerprint


def encode_launch(launch: EngineLaunch) -> bytes:
    """Return ``launch`` as bytes for another machine. Its CPU cores are left out: they are those of this one."""
    return msgspec.json.encode(_SentLaunch(launch.config, list(launch.plugins.fingerprint)))


def decode_launch(data: bytes) -> EngineLaunch:
    """Return the launch that ``encode_launch`` made into ``data``, with the plugins that are installed here.

    Raises ``ConfigError`` if they are not those of the process that encoded it.
    """
    try:
        sent = msgspec.json.decode(data, type=_SentLaunch)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"the launch of an engine cannot be read: {error}; are the versions the same?") from error
    plugins = Plugins.discover(sent.config.plugins)
    check_same_plugins(plugins.fingerprint, sent.fingerprint, "the engine's machine")
    return EngineLaunch(config=sent.config, plugins=plugins)


def was_sent(sending: Awaitable[object]) -> bool:
    """Report whether an asynchronous socket with an unlimited queue has taken a message; else nobody receives it."""
    assert isinstance(sending, asyncio.Future)
    if not sending.done():
        sending.cancel()
        return False
    return sending.exception() is None
