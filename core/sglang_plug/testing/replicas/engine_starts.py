"""Conformance test of deployments: starts that fail, and starts that are cancelled."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from sglang_plug.config import ConfigError
from sglang_plug.contracts.serving.engine_client import EngineClient, EngineLaunch
from sglang_plug.plugins.registry import Plugins

TIMEOUT_SECONDS = 120.0
"""Seconds until something that has to happen counts as not happening."""
CANCELLED_AFTER = (0.0, 0.3)
"""Seconds after which starts are cancelled."""
PROBE = "plugin_of_the_server_only"
PROBE_SOURCE = f"""
from sglang_plug import ServicePhase, StepExtension, StepExtensionSpec, hookimpl


@hookimpl
def register_step_extensions():
    yield StepExtensionSpec(name={PROBE!r}, target=f"{{__name__}}:build", summary="reports that it is in the engine")


class Probe(StepExtension, ServicePhase):
    def info(self):
        return {{{PROBE!r}: True}}


def build(context):
    return Probe()
"""
"""A plugin that shows in the engine's info."""

Result = TypeVar("Result")
Deploy = Callable[[EngineLaunch], EngineClient]


async def soon(work: Awaitable[Result], name: str) -> Result:
    """Await ``work``. Raises ``AssertionError`` with its ``name`` if that takes too long."""
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await work
    except TimeoutError:
        raise AssertionError(f"{name} did not return within {TIMEOUT_SECONDS:g} s") from None


async def check_starts(deploy: Deploy, launch: EngineLaunch) -> None:
    """Start engines that cannot be served, that nobody waits for, and that see other plugins than the server."""
    await _check_refused(deploy, launch)
    for seconds in CANCELLED_AFTER:
        await _check_cancelled(deploy, launch, seconds)
    with tempfile.TemporaryDirectory() as folder:
        await _check_other_plugins(deploy, launch, Path(folder))


async def _check_refused(deploy: Deploy, launch: EngineLaunch) -> None:
    cache = replace(launch.config.cache, prefix_cache="no-such-cache")
    client = deploy(replace(launch, config=replace(launch.config, cache=cache)))
    try:
        await soon(client.start(), "start() with a configuration that cannot be served")
    except ConfigError:
        pass
    except Exception as error:
        raise AssertionError(
            f"a configuration that cannot be served was refused with {type(error).__name__}, not with ConfigError"
        ) from error
    else:
        raise AssertionError("start() returned although the configuration names a prefix cache that does not exist")
    finally:
        await soon(client.close(), "close() after a start that was refused")


async def _check_cancelled(deploy: Deploy, launch: EngineLaunch, seconds: float) -> None:
    client = deploy(launch)
    starting = asyncio.create_task(client.start())
    await asyncio.sleep(seconds)
    was_ready = starting.done()
    starting.cancel()
    try:
        await soon(asyncio.wait((starting,)), "start() that was cancelled")
        assert was_ready or starting.cancelled(), (
            f"start() that was cancelled after {seconds:g} s must raise CancelledError, so that its caller ends, too"
        )
    finally:
        await soon(client.close(), "close() after a start that was cancelled")


async def _check_other_plugins(deploy: Deploy, launch: EngineLaunch, folder: Path) -> None:
    """The server has a plugin that the engine's configuration does not name: the engine must not hide it."""
    file = folder / f"{PROBE}.py"
    file.write_text(PROBE_SOURCE)
    options = launch.plugins.options
    plugins = Plugins.discover(replace(options, files=(*options.files, str(file))))
    client = deploy(replace(launch, plugins=plugins))
    try:
        info = await soon(client.start(), "start() of an engine that sees other plugins than the server")
    except ConfigError:
        return
    finally:
        await soon(client.close(), "close() after a start with other plugins")
    if {tuple(plugin) for plugin in info["fingerprint"]} == set(plugins.fingerprint):
        assert PROBE in info, (
            "start() returned the fingerprint of the server's plugins, but the engine sees other ones; it must return "
            "the fingerprint of the engine, or raise ConfigError"
        )
