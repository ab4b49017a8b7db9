"""The KubeRay manifest that ``sglang-plug ray manifest`` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from .arguments import Arguments

API_VERSION = "ray.io/v1"
IMPORT_PATH = "sglang_plug_ray.application:application"


def application_config(arguments: Arguments, *, name: str) -> dict[str, Any]:
    """Return the file for ``serve deploy``."""
    args = arguments.model_dump(mode="json", exclude_defaults=True)
    return {"applications": [{"name": name, "route_prefix": "/", "import_path": IMPORT_PATH, "args": args}]}


def ray_service(arguments: Arguments, *, name: str, image: str, ray_version: str, memory: str) -> dict[str, Any]:
    """Return a ``RayService`` with one worker for each engine, and a head on which no engine runs."""
    scale = arguments.autoscaling
    engines = arguments.engines if scale is None else scale.min_engines
    max_replicas = arguments.engines if scale is None else scale.max_engines
    engine = _resources(arguments.engine_cpus, arguments.engine_gpus, memory)
    ingress_cpus = max(1.0, arguments.ingresses * arguments.ingress_cpus)
    head = _resources(ingress_cpus, 0, "4Gi")
    spec: dict[str, Any] = {
        "serveConfigV2": yaml.safe_dump(application_config(arguments, name=name), sort_keys=False),
        "rayClusterConfig": {
            "rayVersion": ray_version,
            "enableInTreeAutoscaling": scale is not None,
            "headGroupSpec": {
                "rayStartParams": {"num-cpus": f"{ingress_cpus:g}", "num-gpus": "0"},
                "template": _pod(image, head, {"gcs-server": 6379, "serve": 8000}),
            },
            "workerGroupSpecs": [
                {
                    "groupName": "engines",
                    "replicas": engines,
                    "minReplicas": engines,
                    "maxReplicas": max_replicas,
                    "rayStartParams": {},
                    "template": _pod(image, engine, {}),
                }
            ],
        },
    }
    return {"apiVersion": API_VERSION, "kind": "RayService", "metadata": {"name": name}, "spec": spec}


def _resources(cpus: float, gpus: float, memory: str) -> dict[str, Any]:
    amount: dict[str, str] = {"cpu": f"{cpus:g}", "memory": memory}
    if gpus:
        amount["nvidia.com/gpu"] = f"{gpus:g}"
    return {"requests": amount, "limits": amount}


def _pod(image: str, resources: Mapping[str, Any], ports: Mapping[str, int]) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "ray",
        "image": image,
        "resources": dict(resources),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    if ports:
        container["ports"] = [{"name": name, "containerPort": port} for name, port in ports.items()]
    return {"spec": {"automountServiceAccountToken": False, "enableServiceLinks": False, "containers": [container]}}


def as_yaml(document: Mapping[str, Any]) -> str:
    """Return a document as YAML, with blocks of text as such."""

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    def again(dumper: yaml.SafeDumper, value: Any) -> bool:
        return True

    Dumper.add_representer(str, text)
    Dumper.ignore_aliases = again  # type: ignore[method-assign, assignment]
    return str(yaml.dump(dict(document), Dumper=Dumper, sort_keys=False))
