"""``serve deploy`` on a cluster that ``ray start`` has started: it scales with the load, and is updated."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

if importlib.util.find_spec("ray") is None:
    pytest.skip("ray is not installed", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parent))
from processes import PACKAGE, free_port, until

MODULES = {"ray": "ray.scripts.scripts", "serve": "ray.serve.scripts", "sglang-plug": "sglang_plug"}
"""Program -> the module that it runs: the programs themselves need not be installed next to the interpreter."""
LOOPBACK = "127.0.0.1"
TOKENS_PER_ENGINE = 300
REQUESTS = 16


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster of this machine, as an operator has started it."""

    folder: Path
    environment: Mapping[str, str]
    dashboard: str
    http_port: int

    def run(self, program: str, *arguments: str) -> str:
        """Return what a command prints, which must succeed."""
        done = subprocess.run(
            [sys.executable, "-m", MODULES[program], *arguments],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        assert done.returncode == 0, f"{program} {' '.join(arguments)}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def deploy(self, application: dict[str, Any]) -> None:
        """Write the file, with the address where Serve listens for HTTP, and deploy it."""
        file = self.folder / "llm.yaml"
        file.write_text(yaml.safe_dump({"http_options": {"host": LOOPBACK, "port": self.http_port}, **application}))
        self.run("serve", "deploy", str(file), "--address", self.dashboard)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a cluster of one node that needs a token, and stop all of its processes in the end."""
    folder = tmp_path_factory.mktemp("cluster")
    sockets = tempfile.mkdtemp(prefix="ray-")  # the names of unix sockets must be short
    address, dashboard_port = f"{LOOPBACK}:{free_port()}", free_port()
    environment = {
        **os.environ,
        "PYTHONPATH": str(PACKAGE),
        "OMP_NUM_THREADS": "1",
        "RAY_ADDRESS": address,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "XDG_STATE_HOME": str(folder),
    }
    running = Cluster(folder, environment, f"http://{LOOPBACK}:{dashboard_port}", free_port())
    flags = {
        "--node-ip-address": LOOPBACK,
        "--port": address.rpartition(":")[2],
        "--dashboard-host": LOOPBACK,
        "--dashboard-port": str(dashboard_port),
        "--num-cpus": "8",
        "--object-store-memory": str(100 << 20),
        "--temp-dir": sockets,
    }
    try:
        running.run("ray", "start", "--head", *(text for flag in flags.items() for text in flag))
        yield running
    finally:
        stop = [sys.executable, "-m", MODULES["ray"], "stop", "--force"]
        subprocess.run(stop, env=environment, capture_output=True, check=False)
        shutil.rmtree(sockets, ignore_errors=True)


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[httpx.Client]:
    """Return a client of the ingress."""
    with httpx.Client(base_url=f"http://{LOOPBACK}:{cluster.http_port}", timeout=180) as opened:
        yield opened


@pytest.fixture(scope="module")
def application(cluster: Cluster) -> dict[str, Any]:
    """Return what ``sglang-plug ray config`` prints for one engine or two, with quick scaling."""
    options = [f"--option={option}" for option in ("device=cpu", "max_total_tokens=4096")]
    if not any(entry.name == "ray" for entry in entry_points(group="sglang_plug")):
        (plugins := cluster.folder / "plugins").mkdir()
        (plugins / PACKAGE.name).symlink_to(PACKAGE)
        options += ["--plugins-dir", str(plugins)]
    printed = cluster.run("sglang-plug", "ray", "config", "auto", "--max-engines", "2", *options)
    content: dict[str, Any] = yaml.safe_load(printed)
    scaling = {"tokens_per_engine": TOKENS_PER_ENGINE, "upscale_delay_s": 0.5, "downscale_delay_s": 3.0}
    content["applications"][0]["args"]["autoscaling"].update(scaling)
    return content


def serving(client: httpx.Client) -> int:
    """Return the number of engines that serve, as the ingress knows them."""
    try:
        answer = client.get("/health")
    except httpx.TransportError:
        return 0
    if answer.status_code != 200:
        return 0
    return sum(replica["serves"] for replica in answer.json()["replicas"]) if answer.content else 1


def generate(client: httpx.Client, number: int, tokens: int) -> int:
    """Return the status of a request."""
    sampling = {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0}
    return client.post("/generate", json={"text": f"Number {number}", "sampling_params": sampling}).status_code


def test_a_deployed_file_serves(cluster: Cluster, client: httpx.Client, application: dict[str, Any]) -> None:
    cluster.deploy(application)
    until(lambda: serving(client) == 1, "one engine that serves")
    assert generate(client, 0, 4) == 200
    assert "RUNNING" in cluster.run("serve", "status", "--address", cluster.dashboard)


def test_engines_are_added_under_load_and_removed_after_it(client: httpx.Client) -> None:
    stopping = threading.Event()

    def ask_always(number: int) -> set[int]:
        statuses = set[int]()
        while not stopping.is_set():
            statuses.add(generate(client, number, 100))
        return statuses

    with ThreadPoolExecutor(REQUESTS) as pool:
        requests = [pool.submit(ask_always, number) for number in range(REQUESTS)]
        try:
            until(lambda: serving(client) == 2, "a second engine")
        finally:
            stopping.set()
        assert set[int]().union(*(request.result() for request in requests)) == {200}
    until(lambda: serving(client) == 1, "the end of the second engine")
    assert generate(client, 0, 4) == 200


def test_a_changed_file_is_an_update_that_fails_no_request(
    cluster: Cluster, client: httpx.Client, application: dict[str, Any]
) -> None:
    stopping = threading.Event()

    def ask_always() -> set[int]:
        statuses = set[int]()
        while not stopping.is_set():
            statuses.add(generate(client, 0, 8))
        return statuses

    application["applications"][0]["args"]["options"]["max_total_tokens"] = 3000
    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(ask_always)
        try:
            cluster.deploy(application)
            until(lambda: is_updated(client), "an engine of the new version")
        finally:
            stopping.set()
        assert request.result() == {200}


def is_updated(client: httpx.Client) -> bool:
    """Report whether the ingress and its engine have the changed option."""
    if serving(client) != 1:
        return False
    info: dict[str, Any] = client.get("/server_info").json()
    return bool(info["max_total_tokens"] == 3000)
