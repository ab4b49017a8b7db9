"""A server that is restarted finds its prefixes on a Redis server."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("redis", minversion="8", reason="the library redis is not installed")

from sglang_plug_redis.example import LocalServer
from sglang_plug_redis.seal import SECRET

READY = re.compile(r"http://127\.0\.0\.1:\d+")
PARAMS = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}
BODY = {"input_ids": [50 + index * index % 700 for index in range(200)], "sampling_params": PARAMS}


def is_installed() -> bool:
    try:
        importlib.metadata.distribution("sglang-plug-redis")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@pytest.fixture
def served(server: LocalServer, tmp_path: Path) -> Iterator[Callable[[], httpx.Client]]:
    """Return ``served()``, a client of a new server that keeps its prefixes on the Redis server; the earlier server is
    killed."""
    settings = (f"redis.url={server.url}", "kv-tiers.load=always")
    options = ["--port", "0", "--device", "cpu", "--max-total-tokens", "2048", "--kv-store", "redis"]
    options += [part for setting in settings for part in ("--set", setting)]
    if not is_installed():
        options += ["--plugins-dir", str(Path(__file__).parents[2])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", SECRET: "the secret of a test"}
    processes: list[subprocess.Popen[str]] = []
    log = tmp_path / "log"

    def kill() -> None:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        processes.clear()

    def start() -> httpx.Client:
        kill()
        command = [sys.executable, "-m", "sglang_plug", "serve", *options]
        with log.open("ab") as stderr:
            processes.append(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment)
            )
        assert (lines := processes[-1].stdout) is not None
        ready = next((match for line in lines if (match := READY.search(line))), None)
        assert ready is not None, log.read_text(errors="replace")
        return httpx.Client(base_url=ready.group(), timeout=240)

    yield start
    kill()


def test_the_second_answer_after_a_restart_comes_from_redis(
    served: Callable[[], httpx.Client], server: LocalServer
) -> None:
    with served() as client:
        first = client.post("/generate", json=BODY).json()
        deadline = time.monotonic() + 60
        while client.get("/server_info").json()["kv_stores"]["tiers"]["redis"]["stored_blocks"] < 3:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    with served() as client:
        second = client.post("/generate", json=BODY).json()
        assert second["output_ids"] == first["output_ids"]
        details: dict[str, Any] = second["meta_info"]["cached_tokens_details"]
        assert (first["meta_info"]["cached_tokens"], second["meta_info"]["cached_tokens"]) == (0, 192)
        assert (details["storage"], details["storage_backend"]) == (192, "redis")
        server.kill()
        third = client.post("/generate", json={**BODY, "input_ids": BODY["input_ids"][::-1]})
        assert third.status_code == 200 and third.json()["meta_info"]["cached_tokens"] == 0
