"""Engines on a Ray cluster, and the server as a Ray Serve application. Declares only."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import CommandSpec, DeploymentSpec, hookimpl

api_version = 1


@hookimpl
def register_deployments() -> Iterator[DeploymentSpec]:
    yield DeploymentSpec(
        name="ray",
        target=f"{__name__}.deployment:deploy",
        settings=f"{__name__}.settings:Settings",
        needs=("ray>=2.60",),
        summary="each engine in an actor of the Ray cluster of RAY_ADDRESS, or of a local one",
    )


@hookimpl
def register_commands() -> Iterator[CommandSpec]:
    yield CommandSpec(
        name="ray", target=f"{__name__}.command:command", summary="Ray Serve and KubeRay: print manifests"
    )
