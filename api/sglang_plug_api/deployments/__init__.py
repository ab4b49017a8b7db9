"""Built-in deployments: the engine in a process of its own, or in a thread of the API process."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import DeploymentSpec, hookimpl


@hookimpl
def register_deployments() -> Iterator[DeploymentSpec]:
    yield DeploymentSpec(
        name="process", target=f"{__name__}.process:deploy", summary="each engine in a process of this machine"
    )
    yield DeploymentSpec(
        name="thread",
        target=f"{__name__}.thread:deploy",
        summary="engines in threads of the API process, for tests",
        in_process=True,
    )


@hookimpl(trylast=True)
def choose_component(kind: str) -> str | None:
    return "process" if kind == "deployment" else None
