"""``sglang-plug serve --deployment ray``, with a real cluster of this machine."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path

import httpx
import pytest

if importlib.util.find_spec("ray") is None:
    pytest.skip("ray is not installed", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parent))
from processes import PACKAGE, descendants, engines, is_running, ports_beyond_loopback, start, until

READY = re.compile(r"serves \S+ at (http://\S+)")


ENGINES = {
    "replicas": ("--replicas", "2"),
    "pair": ("--replicas", "1", "--prefill-replicas", "1", "--set", "transfer.bytes=1GB"),
}


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[int, httpx.Client, Path]]:
    """Return the process id of a server with the engines of the parameter, a client, and the log."""
    log, plugins = tmp_path / "log.txt", tmp_path / "plugins"
    plugins.mkdir()
    (plugins / PACKAGE.name).symlink_to(PACKAGE)
    options = ["--deployment", "ray", *ENGINES[request.param], "--device", "cpu", "--port", "0"]
    options += ["--max-total-tokens", "4096"]
    if not any(entry.name == "ray" for entry in entry_points(group="sglang_plug")):
        options += ["--plugins-dir", str(plugins)]
    process = start(["-m", "sglang_plug", "serve", *options, "--file-storage-path", str(tmp_path / "files")], log)

    def is_ready() -> bool:
        assert process.poll() is None, log.read_text()[-6000:]
        return READY.search(log.read_text()) is not None

    try:
        until(is_ready, "the start of the server", log)
        match = READY.search(log.read_text())
        assert match is not None
        with httpx.Client(base_url=match[1], timeout=180) as client:
            yield process.pid, client, log
        process.wait(60)
    finally:
        if process.poll() is None:
            process.kill()


@pytest.mark.parametrize("server", ["replicas"], indirect=True)
def test_requests_survive_an_engine_and_the_end_leaves_no_process(server: tuple[int, httpx.Client, Path]) -> None:
    pid, client, log = server

    def generate(number: int) -> int:
        sampling = {"max_new_tokens": 48, "ignore_eos": True}
        return client.post("/generate", json={"text": f"{number} is", "sampling_params": sampling}).status_code

    def serves(number: int) -> bool:
        replicas = client.get("/health").json()["replicas"]
        return sum(replica["serves"] for replica in replicas) == number

    assert ports_beyond_loopback([pid, *descendants(pid)]) == set()
    first = engines(pid)
    assert len(first) == 2
    with ThreadPoolExecutor(16) as pool:
        requests = [pool.submit(generate, number) for number in range(16)]
        until(lambda: client.get("/server_info").json()["running"] >= 4, "requests in flight", log)
        os.kill(first[0], signal.SIGKILL)
        assert [request.result() for request in requests] == [200] * 16
    until(lambda: serves(2), "the restart of the engine", log)
    processes = descendants(pid)
    os.kill(pid, signal.SIGTERM)
    until(lambda: not any(map(is_running, [pid, *processes])), "the end of every process", log)


@pytest.mark.parametrize("server", ["pair"], indirect=True)
def test_prompts_are_sent_from_one_actor_to_another(server: tuple[int, httpx.Client, Path]) -> None:
    pid, client, _ = server
    assert [engine["role"] for engine in client.get("/health").json()["replicas"]] == ["decode", "prefill"]

    def blocks() -> tuple[int, int]:
        decode, prefill = (engine["kv_stores"] for engine in client.get("/server_info").json()["replica_states"])
        return decode["tiers"]["transfer"]["loaded_blocks"], prefill["transfers"]["sent"]

    before = blocks()
    body = {"input_ids": [50 + index * index % 700 for index in range(300)], "sampling_params": {"max_new_tokens": 4}}
    assert client.post("/generate", json=body).status_code == 200
    assert [now - then for now, then in zip(blocks(), before, strict=True)] == [4, 1]
    assert ports_beyond_loopback([pid, *descendants(pid)]) == set()
    os.kill(pid, signal.SIGTERM)
