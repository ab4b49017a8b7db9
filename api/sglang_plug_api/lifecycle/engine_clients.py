"""The client of the server's engines: one, or a group of replicas."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from sglang_plug import DeploymentSpec, EngineClient, EngineLaunch, Facts, Plugins, RoutingPolicy
from sglang_plug.clients.replicas.changing_group import EngineGroup
from sglang_plug.clients.replicas.checked_routing import CheckedRouting
from sglang_plug.clients.replicas.cores import shares_of_cores
from sglang_plug.clients.replicas.group import ReplicaGroup
from sglang_plug.clients.replicas.restart import RestartingClient
from sglang_plug.plugins.attribution import make, make_with_settings
from sglang_plug.plugins.registry import Component
from sglang_plug_api.options.config import ServerConfig

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
    makes = [
        partial(_deploy, component, _launch(config, plugins, number, cores))
        for number, cores in enumerate(shares_of_cores(config.replicas))
    ]
    if config.replicas > 1:
        return ReplicaGroup(makes, _routing(config, plugins), most=MAX_RESTARTS, window=RESTARTS_WINDOW)
    if config.engine_restart:
        return RestartingClient(makes[0], most=MAX_RESTARTS, window=RESTARTS_WINDOW)
    return makes[0]()


def engine_group(config: ServerConfig, plugins: Plugins) -> EngineGroup:
    """Return a group to which a platform adds the engines that it runs, with the routing policy of ``config``.

    Raises ``ConfigError`` if the routing policy cannot be made.
    """
    return EngineGroup(_routing(config, plugins))


def engine_is_in_process(config: ServerConfig, plugins: Plugins) -> bool:
    """Report whether engines run in this process."""
    spec = plugins.resolve("deployment", config.deployment, Facts()).spec
    assert isinstance(spec, DeploymentSpec)
    return spec.in_process


def _launch(config: ServerConfig, plugins: Plugins, number: int, cores: tuple[int, ...]) -> EngineLaunch:
    parallel = replace(config.engine.parallel, replica=number, replicas=config.replicas)
    return EngineLaunch(config=replace(config.engine, parallel=parallel), plugins=plugins, cores=cores)


def _deploy(component: Component, launch: EngineLaunch) -> EngineClient:
    client: EngineClient = make(component, launch, component.settings(), contract=EngineClient)
    return client


def _routing(config: ServerConfig, plugins: Plugins) -> CheckedRouting:
    component = plugins.resolve("routing", config.routing_policy, Facts())
    policy: RoutingPolicy = make_with_settings(component, contract=RoutingPolicy)
    return CheckedRouting(policy, str(component))
