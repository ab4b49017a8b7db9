"""The components that the plugin declares, and its settings. Needs no ray."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from sglang_plug_ray import register_commands, register_deployments
from sglang_plug_ray.settings import Settings


def test_it_declares_a_deployment_that_needs_ray_and_a_command() -> None:
    (deployment,) = register_deployments()
    assert (deployment.kind, deployment.name, deployment.in_process) == ("deployment", "ray", False)
    assert deployment.needs == ("ray>=2.60",)
    (command,) = register_commands()
    assert (command.kind, command.name) == ("command", "ray")


def test_declaring_imports_nothing_heavy() -> None:
    code = (
        "import sys, sglang_plug_ray, sglang_plug_ray.command; print(*{'ray', 'pydantic', 'yaml'} & set(sys.modules))"
    )
    folder = __file__.rpartition("/tests/")[0]
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    "settings", [{"engine_cpus": 0}, {"engine_gpus": -1}, {"cluster_cpus": 0}, {"object_store_mib": 10}]
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        Settings(**settings)
