"""The client of the server's engines: one, or a group of replicas."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from sglang_plug import (
    ConfigError,
    DeploymentSpec,
    EngineClient,
    EngineConfig,
    EngineLaunch,
    Facts,
    Plugins,
    RoutingPolicy,
)
from sglang_plug.clients.replicas.changing_group import EngineGroup
from sglang_plug.clients.replicas.checked_routing import CheckedRouting
from sglang_plug.clients.replicas.cores import shares_of_cores
from sglang_plug.clients.replicas.group import ReplicaGroup
from sglang_plug.clients.replicas.paired_group import PairedGroup
from sglang_plug.clients.replicas.restart import RestartingClient
from sglang_plug.plugins.attribution import make, make_with_settings
from sglang_plug.plugins.registry import Component
from sglang_plug.system.private_folder import PrivateFolder, private_folder
from sglang_plug_api.options.config import ServerConfig

MAX_RESTARTS = 3
RESTARTS_WINDOW = 600.0
"""Seconds in which an engine may be restarted ``MAX_RESTARTS`` times."""
TRANSFER = "transfer"
"""The KV store that prompts are sent with, unless others are named."""
SECRET_VARIABLE, SECRET_FILE = "SGLANG_PLUG_TRANSFER_SECRET", "secret"


def make_client(config: ServerConfig, plugins: Plugins) -> EngineClient:
    """Return a client for the server's engines, not started.

    With ``--engine-restart`` it restarts its engine; with several ``--replicas`` it restarts each of them.
    Raises ``ConfigError`` if the deployment or the routing policy cannot be made.
    """
    component = plugins.resolve("deployment", config.deployment, Facts())
    component.load()
    if config.prefill_replicas:
        return _paired_group(config, plugins, component)
    makes = _makes(config, plugins, component)
    if config.replicas > 1:
        return ReplicaGroup(makes, _routing(config, plugins), most=MAX_RESTARTS, window=RESTARTS_WINDOW)
    if config.engine_restart:
        return RestartingClient(makes[0], most=MAX_RESTARTS, window=RESTARTS_WINDOW)
    return makes[0]()


def engine_group(config: ServerConfig, plugins: Plugins) -> EngineGroup:
    """Return a group to which a platform adds the engines that it runs, with the routing policy of ``config``.

    Raises ``ConfigError`` if the routing policy cannot be made, or if ``config`` asks for prefill engines.
    """
    if config.prefill_replicas:
        raise ConfigError("--prefill-replicas does not work where a platform starts the engines; leave it out")
    return EngineGroup(_routing(config, plugins))


def engine_is_in_process(config: ServerConfig, plugins: Plugins) -> bool:
    """Report whether engines run in this process."""
    spec = plugins.resolve("deployment", config.deployment, Facts()).spec
    assert isinstance(spec, DeploymentSpec)
    return spec.in_process


def _paired_group(config: ServerConfig, plugins: Plugins, component: Component) -> PairedGroup:
    """Return a group of decode engines, then prefill engines, whose stores share a secret."""
    stores = config.engine.cache.kv_stores or (TRANSFER,)
    engine = replace(config.engine, cache=replace(config.engine.cache, kv_stores=stores))
    shared = None if TRANSFER not in stores or _has_secret(engine) else _new_secret()
    if shared is not None:
        engine = _with_secret(engine, shared.path / SECRET_FILE)
    makes = _makes(replace(config, engine=engine), plugins, component)
    return PairedGroup(
        makes[: config.replicas],
        makes[config.replicas :],
        _routing(config, plugins),
        _routing(config, plugins),
        most=MAX_RESTARTS,
        window=RESTARTS_WINDOW,
        closed=(lambda: None) if shared is None else shared.close,
    )


def _has_secret(engine: EngineConfig) -> bool:
    return bool(os.environ.get(SECRET_VARIABLE) or engine.plugins.settings.get(TRANSFER, {}).get("secret_file"))


def _new_secret() -> PrivateFolder:
    """Return a folder with a file that has a random secret; only this user can read it."""
    folder = private_folder("sglang-plug-secret-")
    (folder.path / SECRET_FILE).write_text(secrets.token_hex(32), encoding="ascii")
    return folder


def _with_secret(engine: EngineConfig, file: Path) -> EngineConfig:
    settings = engine.plugins.settings
    changed = {**settings, TRANSFER: {**settings.get(TRANSFER, {}), "secret_file": str(file)}}
    return replace(engine, plugins=replace(engine.plugins, settings=changed))


def _makes(config: ServerConfig, plugins: Plugins, component: Component) -> list[Callable[[], EngineClient]]:
    """Return for each engine a function that makes its client."""
    return [
        partial(_deploy, component, _launch(config, plugins, number, cores))
        for number, cores in enumerate(shares_of_cores(config.engines))
    ]


def _launch(config: ServerConfig, plugins: Plugins, number: int, cores: tuple[int, ...]) -> EngineLaunch:
    parallel = replace(config.engine.parallel, replica=number, replicas=config.engines)
    return EngineLaunch(config=replace(config.engine, parallel=parallel), plugins=plugins, cores=cores)


def _deploy(component: Component, launch: EngineLaunch) -> EngineClient:
    client: EngineClient = make(component, launch, component.settings(), contract=EngineClient)
    return client


def _routing(config: ServerConfig, plugins: Plugins) -> CheckedRouting:
    component = plugins.resolve("routing", config.routing_policy, Facts())
    policy: RoutingPolicy = make_with_settings(component, contract=RoutingPolicy)
    return CheckedRouting(policy, str(component))
