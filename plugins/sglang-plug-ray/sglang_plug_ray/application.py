"""The Ray Serve application: ``serve run sglang_plug_ray.application:application model_path=...``."""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from .arguments import Arguments
from .directory import Directory
from .engine_replica import EngineReplica
from .ingress import Ingress

HEALTH_PERIOD, HEALTH_TIMEOUT = 2.0, 30.0
MANY = 100_000
"""Requests in flight of a replica: the server has limits of its own, which answer with 429 and 503."""


def application(arguments: Arguments) -> serve.Application:
    """Return the application: a directory, the engines, and the ingresses. Starts nothing."""
    data = arguments.model_dump(mode="json")
    directory = serve.deployment(Directory, name="directory").options(
        num_replicas=1,
        max_ongoing_requests=MANY,
        ray_actor_options={"num_cpus": 0},
        logging_config={"enable_access_log": False},  # it is asked twice a second by everybody
    )
    engines = serve.deployment(EngineReplica, name="engines").options(
        **_scale(arguments),
        max_ongoing_requests=MANY,
        ray_actor_options={"num_cpus": arguments.engine_cpus, "num_gpus": arguments.engine_gpus},
        graceful_shutdown_timeout_s=arguments.drain_seconds + 30.0,
        health_check_period_s=HEALTH_PERIOD,
        health_check_timeout_s=HEALTH_TIMEOUT,
    )
    ingress = serve.deployment(serve.ingress()(Ingress), name="ingress").options(
        num_replicas=arguments.ingresses,
        max_ongoing_requests=MANY,
        ray_actor_options={"num_cpus": arguments.ingress_cpus},
        graceful_shutdown_timeout_s=arguments.drain_seconds,
        health_check_period_s=HEALTH_PERIOD,
        health_check_timeout_s=HEALTH_TIMEOUT,
    )
    registry = directory.bind()
    return ingress.bind(data, registry, engines.bind(data, registry))


application.__annotations__["arguments"] = Arguments  # Serve reads the class itself from here, not its name


def _scale(arguments: Arguments) -> dict[str, Any]:
    scale = arguments.autoscaling
    if scale is None:
        return {"num_replicas": arguments.engines}
    policy = AutoscalingPolicy(
        policy_function="sglang_plug_ray.scaling:TokensPolicy",
        policy_kwargs={"tokens_per_engine": scale.tokens_per_engine},
    )
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=scale.min_engines,
            max_replicas=scale.max_engines,
            upscale_delay_s=scale.upscale_delay_s,
            downscale_delay_s=scale.downscale_delay_s,
            policy=policy,
        )
    }
