"""Starting the ranks that share a model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import msgspec

from sglang_plug.config import EngineConfig
from sglang_plug.contracts.serving.executor import Executor, LaunchSpec, RankEndpoint, RankGroup
from sglang_plug.engine.loading.resolve import Resolved
from sglang_plug.engine.messages.rank_messages import Ranks
from sglang_plug.plugins.attribution import attributed, make
from sglang_plug.plugins.registry import Plugins
from sglang_plug.system.child_process import python_command

from .worker_rank import WorkerRankLaunch, follow, rank_device, with_device

logger = logging.getLogger(__name__)

COMMAND = python_command("sglang_plug.engine.tensor_parallel.worker_rank")


def start_ranks(resolved: Resolved, plugins: Plugins, lost: Callable[[str], None]) -> Ranks | None:
    """Start the other ranks; ``None`` if there are none.

    ``lost`` is called when one of them has ended. Raises ``ConfigError`` if they cannot run here.
    """
    size = resolved.config.parallel.tp_size
    if size == 1:
        return None
    component = resolved.choices["executor"].component
    executor: Executor = make(component, component.settings(), base=Executor)
    with attributed(component, "to start the ranks"):
        group: RankGroup = executor.start(_launch_spec(resolved, plugins))
    logger.info("The model is shared by %d ranks, brought up by %s", size, component)
    ranks = Ranks(group)
    ranks.watch(lost)
    return ranks


def _launch_spec(resolved: Resolved, plugins: Plugins) -> LaunchSpec:
    config, fingerprint = _resolved_config(resolved), list(plugins.fingerprint)

    def of_rank(rank: int) -> EngineConfig:
        return with_device(config, rank_device(resolved.device, rank))

    def line(rank: int, rendezvous: str) -> bytes:
        return msgspec.json.encode(WorkerRankLaunch(of_rank(rank), fingerprint, rank, rendezvous)) + b"\n"

    def run(rank: int, endpoint: RankEndpoint) -> None:
        follow(of_rank(rank), plugins.with_own_lifecycle(), endpoint)

    return LaunchSpec(
        size=config.parallel.tp_size, device=resolved.device, command=COMMAND, line=line, run_worker_rank=run
    )


def _resolved_config(resolved: Resolved) -> EngineConfig:
    """Return the configuration with rank 0's choices, which the other ranks must not make again."""
    config, names = resolved.config, {kind: choice.component.spec.name for kind, choice in resolved.choices.items()}
    return replace(
        config,
        backends=replace(config.backends, attention=names["attention"], kernels=names["kernels"]),
        parallel=replace(config.parallel, executor=names["executor"]),
    )
