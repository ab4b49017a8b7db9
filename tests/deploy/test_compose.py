"""Tests of the Docker Compose file: reachable services, ports on the loopback interface only, existing files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sglang_plug_api.options.option_table import options

ROOT = Path(__file__).parents[2]
KEYS = {"name", "services", "volumes"}
SERVICE_KEYS = set(
    "build cap_drop command depends_on environment image ports read_only restart security_opt shm_size "
    "stop_grace_period tmpfs volumes".split()
)


@pytest.fixture(scope="module")
def compose() -> Any:
    return yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))


def load(path: str) -> Any:
    return yaml.safe_load((ROOT / "deploy" / path).read_text(encoding="utf-8"))


def test_the_keys_are_those_of_compose(compose: Any) -> None:
    assert set(compose) == KEYS
    assert all(set(service) <= SERVICE_KEYS for service in compose["services"].values())


def test_ports_are_published_on_this_machine_only(compose: Any) -> None:
    ports = [port for service in compose["services"].values() for port in service["ports"]]
    assert len(ports) == 3 and all(port.startswith("127.0.0.1:") for port in ports)


def test_files_and_volumes_exist(compose: Any) -> None:
    for service in compose["services"].values():
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in compose["volumes"], mount


def test_no_service_has_rights_that_it_does_not_need(compose: Any) -> None:
    for service in compose["services"].values():
        assert service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"]
    server = compose["services"]["server"]
    assert server["read_only"] and server["tmpfs"] == ["/tmp"]
    assert {mount.split(":")[1] for mount in server["volumes"]} == {"/models", "/state"}


def test_the_options_and_variables_of_the_server_exist(compose: Any) -> None:
    server = compose["services"]["server"]
    flags = {flag for option in options() for flag in option.flags}
    assert {word for word in server["command"] if word.startswith("--")} <= flags
    own = {name for name in server["environment"] if name.startswith("SGLANG_PLUG_")}
    assert own <= {option.variable for option in options()}
    grace = int(server["stop_grace_period"].removesuffix("s"))
    assert grace >= int(server["command"][server["command"].index("--drain-timeout") + 1]) + 25


def test_prometheus_finds_the_server_and_grafana_finds_prometheus(compose: Any) -> None:
    (job,) = load("prometheus.yml")["scrape_configs"]
    host, port = job["static_configs"][0]["targets"][0].split(":")
    assert any(mapped.endswith(f":{port}") for mapped in compose["services"][host]["ports"])
    (source,) = load("grafana/datasources/prometheus.yaml")["datasources"]
    host, port = re.fullmatch(r"http://(\w+):(\d+)", source["url"]).groups()  # type: ignore[union-attr]
    assert any(mapped.endswith(f":{port}") for mapped in compose["services"][host]["ports"])
    assert source["isDefault"] and source["type"] == "prometheus"


def test_grafana_provides_the_dashboard(compose: Any) -> None:
    (provider,) = load("grafana/dashboards/sglang-plug.yaml")["providers"]
    grafana = compose["services"]["grafana"]
    mounts = dict(mount.split(":")[:2] for mount in grafana["volumes"])
    target = mounts["./docs/grafana-dashboard.json"]
    assert target.startswith(provider["options"]["path"])
    assert grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == target
    kinds = {
        variable["type"]
        for variable in json.loads((ROOT / "docs" / "grafana-dashboard.json").read_text())["templating"]["list"]
    }
    assert "datasource" in kinds  # it takes the default source, whatever its id


def test_images_have_versions(compose: Any) -> None:
    images = [service["image"] for service in compose["services"].values() if "build" not in service]
    assert all(re.search(r":v?\d+\.\d+\.\d+$", image) for image in images)
