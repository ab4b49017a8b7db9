"""The client of the server's engines: one, or a group of replicas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from sglang_plug import (
    ConfigError,
    DeploymentSpec,
    EngineAddress,
    EngineClient,
    EngineLaunch,
    Facts,
    Plugins,
    RemoteClient,
    RoutingPolicy,
)
from sglang_plug.clients.peer_connections import keys_of
from sglang_plug.plugins.attribution import make, make_with_settings
from sglang_plug.plugins.registry import Component
from sglang_plug_api.options.config import ServerConfig

from .prefill_servers.decode_group import DecodeGroup
from .prefill_servers.prefill_group import PrefillGroup
from .replicas.changing_group import EngineGroup
from .replicas.checked_routing import CheckedRouting
from .replicas.cores import shares_of_cores
from .replicas.group import ReplicaGroup
from .replicas.paired_group import PairedGroup
from .replicas.restart import RestartingClient
from .roles import PrefillAddress, check_role, listening_address, prefill_addresses
from .transfer_secret import TRANSFER, has_secret, new_secret, read_secret, with_secret, with_transfer_store

MAX_RESTARTS = 3
RESTARTS_WINDOW = 600.0
"""Seconds in which an engine may be restarted ``MAX_RESTARTS`` times."""


def make_client(config: ServerConfig, plugins: Plugins) -> EngineClient:
    """Return a client for the server's engines, not started.

    With ``--engine-restart`` it restarts its engine; with several ``--replicas`` it restarts each of them.
    Raises ``ConfigError`` if the deployment or the routing policy cannot be made.
    """
    component = plugins.resolve("deployment", config.deployment, Facts())
    component.load()
    check_role(config)
    if config.role:
        return _role_group(config, plugins, component)
    if config.prefill_replicas:
        return _paired_group(config, plugins, component)
    factories = _factories(config, plugins, component)
    if config.replicas > 1:
        return ReplicaGroup(factories, _routing(config, plugins), max_restarts=MAX_RESTARTS, window=RESTARTS_WINDOW)
    if config.engine_restart:
        return RestartingClient(factories[0], max_restarts=MAX_RESTARTS, window=RESTARTS_WINDOW)
    return factories[0]()


def engine_group(config: ServerConfig, plugins: Plugins) -> EngineGroup:
    """Return a group to which a platform adds the engines that it runs, with the routing policy of ``config``.

    Raises ``ConfigError`` if the routing policy cannot be made, or if ``config`` asks for prefill engines.
    """
    if config.prefill_replicas or config.role:
        option = "--role" if config.role else "--prefill-replicas"
        raise ConfigError(f"{option} does not work where a platform starts the engines; leave it out")
    return EngineGroup(_routing(config, plugins))


def engine_is_in_process(config: ServerConfig, plugins: Plugins) -> bool:
    """Report whether engines run in this process."""
    return plugins.resolve("deployment", config.deployment, Facts()).spec_as(DeploymentSpec).in_process


def _paired_group(config: ServerConfig, plugins: Plugins, component: Component) -> PairedGroup:
    """Return a group of decode engines, then prefill engines, whose stores share a secret."""
    engine = with_transfer_store(config.engine)
    shared = None if TRANSFER not in engine.cache.kv_stores or has_secret(engine) else new_secret()
    if shared is not None:
        engine = with_secret(engine, shared)
    factories = _factories(replace(config, engine=engine), plugins, component)
    return PairedGroup(
        factories[: config.replicas],
        factories[config.replicas :],
        _routing(config, plugins),
        _routing(config, plugins),
        max_restarts=MAX_RESTARTS,
        window=RESTARTS_WINDOW,
        closed=(lambda: None) if shared is None else shared.close,
    )


def _role_group(config: ServerConfig, plugins: Plugins, component: Component) -> PrefillGroup | DecodeGroup:
    """Return the engines of a prefill server, or of a decode server."""
    engine = with_transfer_store(config.engine)
    keys = keys_of(read_secret(engine, config.role or ""))
    factories = _factories(replace(config, engine=engine), plugins, component)
    if config.role == "prefill":
        return PrefillGroup(
            factories,
            _routing(config, plugins),
            plugins.fingerprint,
            host=listening_address(config.host),
            port=config.prefill_port,
            keys=keys,
            max_restarts=MAX_RESTARTS,
            window=RESTARTS_WINDOW,
        )
    return DecodeGroup(
        factories,
        [(str(address), partial(_remote, address, plugins, keys)) for address in prefill_addresses(config)],
        _routing(config, plugins),
        _routing(config, plugins),
        max_restarts=MAX_RESTARTS,
        window=RESTARTS_WINDOW,
    )


def _remote(address: PrefillAddress, plugins: Plugins, keys: tuple[bytes, bytes]) -> RemoteClient:
    """Return a client of a prefill server."""

    async def connect(own_key: bytes) -> EngineAddress:
        return EngineAddress(address.host, address.port, own_key)  # both sides have the same keys

    return RemoteClient(connect, plugins, keys=keys)


def _factories(config: ServerConfig, plugins: Plugins, component: Component) -> list[Callable[[], EngineClient]]:
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
