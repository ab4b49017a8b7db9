"""Tests of the kustomize base: matching names, no privileges, existing options."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from sglang_plug_api.options.option_table import options

ROOT = Path(__file__).parents[2]
BASE = ROOT / "deploy" / "kubernetes"
VERSIONS = {
    "Deployment": "apps/v1",
    "PersistentVolumeClaim": "v1",
    "Service": "v1",
    "ServiceAccount": "v1",
}


@pytest.fixture(scope="module")
def resources() -> Mapping[tuple[str, str], Any]:
    """Return the objects of the base by kind and name."""
    listed = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    objects = [document for name in listed for document in yaml.safe_load_all((BASE / name).read_text())]
    return {(resource["kind"], resource["metadata"]["name"]): resource for resource in objects}


@pytest.fixture(scope="module")
def pod(resources: Mapping[tuple[str, str], Any]) -> Any:
    return resources["Deployment", "llm"]["spec"]["template"]["spec"]


def rendered(folder: Path) -> list[Any]:
    """Return the objects that ``kubectl`` would apply."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    command = ["kubectl", "kustomize", str(folder), "--load-restrictor", "LoadRestrictionsNone"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def test_every_file_is_a_resource_of_a_known_kind(resources: Mapping[tuple[str, str], Any]) -> None:
    listed = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(path.name for path in BASE.glob("*.yaml") if path.name != "kustomization.yaml")
    assert all(VERSIONS[kind] == resource["apiVersion"] for (kind, _), resource in resources.items())


def test_names_fit_together(resources: Mapping[tuple[str, str], Any], pod: Any) -> None:
    (container,) = pod["containers"]
    claims = {
        volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume
    }
    assert claims == {name for kind, name in resources if kind == "PersistentVolumeClaim"}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert ("ServiceAccount", pod["serviceAccountName"]) in resources
    ports = {port["name"] for port in container["ports"]}
    assert {port["targetPort"] for port in resources["Service", "llm"]["spec"]["ports"]} <= ports
    assert {container[f"{probe}Probe"]["httpGet"]["port"] for probe in ("startup", "liveness", "readiness")} <= ports


def test_the_pod_has_no_rights(pod: Any) -> None:
    (container,) = pod["containers"]
    security = container["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
    assert security == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    assert {"/models", "/state", "/tmp"} <= {mount["mountPath"] for mount in container["volumeMounts"]}


def test_options_variables_and_times(pod: Any) -> None:
    (container,) = pod["containers"]
    arguments = container["args"]
    assert {word for word in arguments if word.startswith("--")} <= {
        flag for option in options() for flag in option.flags
    }
    assert {variable["name"] for variable in container["env"]} <= {option.variable for option in options()}
    drain = int(arguments[arguments.index("--drain-timeout") + 1])
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= drain + pause + 25
    assert pod["enableServiceLinks"] is False


def test_the_base_is_rendered_with_selectors_and_the_image() -> None:
    objects = {resource["kind"]: resource for resource in rendered(BASE)}
    labels = {"app.kubernetes.io/name": "sglang-plug"}
    deployment = objects["Deployment"]["spec"]
    assert deployment["selector"]["matchLabels"] == deployment["template"]["metadata"]["labels"] == labels
    assert objects["Service"]["spec"]["selector"] == labels
    assert re.fullmatch(r"sglang-plug:[\d.]+", deployment["template"]["spec"]["containers"][0]["image"])


def test_the_overlay_of_the_page_is_rendered(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "containers.md").read_text(encoding="utf-8")
    (overlay,) = re.findall(r"^```yaml\n(# kustomization\.yaml\n.*?)^```$", page, re.DOTALL | re.MULTILINE)
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kustomization.yaml").write_text(overlay)
    (deployment,) = [resource for resource in rendered(tmp_path / "mine") if resource["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.com/llm/sglang-plug:0.1.0"
    assert container["args"][:2] == ["serve", "Qwen/Qwen3-0.6B"]
    assert container["resources"]["limits"] == {"memory": "8Gi", "nvidia.com/gpu": 1}
