"""Bringing up the ranks that share a model."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import replace

import msgspec

from sglang_plug.attribution import attributed, make
from sglang_plug.config import EngineConfig
from sglang_plug.executor import Executor, Order, Seat, Team
from sglang_plug.plugins import Plugins

from .follower import FollowerLaunch, follow, rank_device, with_device
from .ranks import Ranks
from .resolve import Resolved

logger = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "sglang_plug.engine.follower")


def start_ranks(resolved: Resolved, plugins: Plugins, lost: Callable[[str], None]) -> Ranks | None:
    """The other ranks, under way; ``None`` if there are none.

    ``lost`` is told of one that is gone. Raises ``ConfigError`` if they cannot run here.
    """
    size = resolved.config.parallel.tp_size
    if size == 1:
        return None
    component = resolved.choices["executor"].component
    executor: Executor = make(component, component.settings(), base=Executor)
    with attributed(component, "to start the ranks"):
        team: Team = executor.start(_order(resolved, plugins))
    logger.info("The model is shared by %d ranks, brought up by %s", size, component)
    ranks = Ranks(team)
    ranks.watch(lost)
    return ranks


def _order(resolved: Resolved, plugins: Plugins) -> Order:
    config, fingerprint = _settled(resolved), list(plugins.fingerprint)

    def of_rank(rank: int) -> EngineConfig:
        return with_device(config, rank_device(resolved.device, rank))

    def line(rank: int, ticket: str) -> bytes:
        return msgspec.json.encode(FollowerLaunch(of_rank(rank), fingerprint, rank, ticket)) + b"\n"

    def run(rank: int, seat: Seat) -> None:
        follow(of_rank(rank), plugins, seat)

    return Order(size=config.parallel.tp_size, device=resolved.device, command=COMMAND, line=line, follow=run)


def _settled(resolved: Resolved) -> EngineConfig:
    """The configuration with what rank 0 chose: the others are not asked."""
    config, names = resolved.config, {kind: choice.component.spec.name for kind, choice in resolved.choices.items()}
    return replace(
        config,
        backends=replace(config.backends, attention=names["attention"], kernels=names["kernels"], grammar="none"),
        parallel=replace(config.parallel, executor=names["executor"]),
    )
