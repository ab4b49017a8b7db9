"""Tests of ``--kv-store`` as users see it: prefixes outlive a server that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .servers import NO_GRAMMARS, until

PARAMS = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}


def body(seed: int = 0, length: int = 400) -> dict[str, Any]:
    """Return a request with a unique prompt."""
    return {
        "input_ids": [50 + (seed + position * position) % 700 for position in range(length)],
        "sampling_params": PARAMS,
    }


def cache(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run ``sglang-plug cache``."""
    command = [sys.executable, "-m", "sglang_plug", "cache", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the servers of this module store KV blocks."""
    return tmp_path_factory.mktemp("kv") / "blocks"


@pytest.fixture(scope="module")
def flags(directory: Path) -> tuple[str, ...]:
    """The options of the servers of this module."""
    settings = (
        f"disk.path={directory}",
        "disk.bytes=200MB",
        "host.bytes=100MB",
        "kv-tiers.load=always",
        "kv-tiers.buffer_mib=64",
    )
    pool = ("--max-total-tokens", "4096")
    return (
        *pool,
        *NO_GRAMMARS,
        "--kv-store",
        "host,disk",
        "--enable-cache-report",
        *(part for setting in settings for part in ("--set", setting)),
    )


@pytest.fixture(scope="module")
def expected(module_launcher: Any, flags: tuple[str, ...]) -> dict[str, Any]:
    """The first answer of a server, which is killed once its blocks are stored, while it computes others."""
    server = module_launcher(*flags)
    answer = server.generate(body())
    until(lambda: server.info()["kv_stores"]["tiers"]["disk"]["blocks"] >= 6, "the prefix is stored")
    with ThreadPoolExecutor() as threads:
        for seed in range(1, 5):
            threads.submit(server.post, "/generate", body(seed, 2000))
        until(lambda: server.info()["kv_stores"]["tiers"]["disk"]["blocks"] > 6, "other blocks are being stored")
        os.kill(server.engine_pid, signal.SIGKILL)
        server.process.kill()
    return dict(answer)


@pytest.fixture(scope="module")
def restarted(module_launcher: Any, flags: tuple[str, ...], expected: dict[str, Any]) -> Any:
    """A second server with the same directory."""
    return module_launcher.in_thread(*flags)


def test_the_first_answer_after_a_kill_comes_from_the_directory(restarted: Any, expected: dict[str, Any]) -> None:
    answer = restarted.generate(body())
    assert answer["output_ids"] == expected["output_ids"]
    assert expected["meta_info"]["cached_tokens_details"] == {"device": 0, "host": 0}
    details = answer["meta_info"]["cached_tokens_details"]
    assert details == {"device": 0, "host": 0, "storage": 384, "storage_backend": "disk"}
    assert answer["meta_info"]["cached_tokens"] == 384


def test_usage_and_metrics_tell_what_was_loaded(restarted: Any) -> None:
    text = "Tell me all about the history of the city of Paris, from its beginnings to this day. " * 12
    chat = {"messages": [{"role": "user", "content": text}], "max_tokens": 4, "return_cached_tokens_details": True}
    restarted.post("/v1/chat/completions", chat)
    until(lambda: restarted.info()["kv_stores"]["queued_blocks"] == 0, "everything is stored")
    restarted.generate(body(20, 4000))  # the pool has room for nothing else
    answer = restarted.post("/v1/chat/completions", chat).json()
    details = answer["sglext"]["cached_tokens_details"]
    assert details["host"] > 0 and set(details) == {"device", "host"}
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == sum(details.values())

    def metrics() -> list[str]:
        restarted.generate(body(30, 5))
        lines = restarted.get("/metrics").text.splitlines()
        return [
            line for line in lines if line.startswith("sglang:kv_store_loaded_blocks_total{") and 'store="host"' in line
        ]

    until(lambda: [line for line in metrics() if float(line.split()[-1]) > 0], "the metric counts the blocks")


def test_nothing_is_loaded_after_a_flush(restarted: Any, expected: dict[str, Any], directory: Path) -> None:
    restarted.wait_whole()
    assert restarted.post("/flush_cache").status_code == 200
    assert cache("stats", directory).stdout.splitlines()[2] == "blocks: 0"
    answer = restarted.generate(body())
    assert (answer["meta_info"]["cached_tokens"], answer["output_ids"]) == (0, expected["output_ids"])


def test_the_directory_can_be_inspected_while_it_is_used(restarted: Any, directory: Path) -> None:
    restarted.generate(body(40))
    until(lambda: restarted.info()["kv_stores"]["queued_blocks"] == 0, "everything is stored")
    stats = dict(line.split(": ") for line in cache("stats", directory).stdout.splitlines())
    assert int(stats["files being written"]) == 1 and int(stats["blocks"]) >= 6
    verified = cache("verify", directory)
    assert (verified.returncode, "damaged blocks: 0" in verified.stdout) == (0, True)
    assert "removed files: 0" in cache("prune", directory, "--bytes", "1KB").stdout
    assert restarted.generate(body(40))["meta_info"]["cached_tokens"] == 399
    refused = cache("stats", directory.parent)
    assert refused.returncode == 2 and "is not a directory of KV blocks" in refused.stderr
