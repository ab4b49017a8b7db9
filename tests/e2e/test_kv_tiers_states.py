"""Tests of ``--kv-store`` with recurrent states, which outlive servers that are killed while they store states."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .servers import NO_GRAMMARS, until
from .test_kv_tiers import PARAMS, cache

LONG = 500
"""Tokens of prompts that are being stored when a server is killed."""


def body(seed: int, length: int = 400) -> dict[str, Any]:
    """Return a request with a unique prompt."""
    return {
        "input_ids": [5 + (seed * (position + 1) + position * position) % 400 for position in range(length)],
        "sampling_params": PARAMS,
    }


def test_a_killed_server_leaves_whole_states(launch: Any, tiny_model: Callable[[str], Any], tmp_path: Path) -> None:
    directory = tmp_path / "blocks"
    settings = (f"disk.path={directory}", "disk.bytes=200MB", "kv-tiers.load=always")
    options = ("--model-path", str(tiny_model("qwen3.5").path), "--skip-tokenizer-init", "--enable-cache-report")
    flags = (
        *options,
        *NO_GRAMMARS,
        "--kv-store",
        "disk",
        *(part for setting in settings for part in ("--set", setting)),
    )

    def stored(server: Any) -> int:
        return int(server.info()["kv_stores"]["tiers"]["disk"]["blocks"])

    expected = dict[int, list[int]]()
    for start in (10, 30):
        server = launch(*flags)
        for seed in range(4):  # the second server continues from what the killed one has stored
            answer = server.generate(body(seed))
            assert expected.setdefault(seed, answer["output_ids"]) == answer["output_ids"]
        until(lambda server=server: server.info()["kv_stores"]["queued_blocks"] == 0, "everything is stored")
        before = stored(server)
        with ThreadPoolExecutor() as threads:
            for seed in range(start, start + 8):
                threads.submit(server.post, "/generate", body(seed, LONG))
            until(lambda server=server, before=before: stored(server) > before, "other blocks are being stored")
            os.kill(server.engine_pid, signal.SIGKILL)
            server.process.kill()
    verified = cache("verify", directory)
    assert (verified.returncode, "damaged blocks: 0" in verified.stdout) == (0, True), verified.stdout
    server = launch.in_thread(*flags)
    for seed, tokens in expected.items():
        answer = server.generate(body(seed))
        assert (answer["output_ids"], answer["meta_info"]["cached_tokens"]) == (tokens, 384)
        assert answer["meta_info"]["cached_tokens_details"]["storage"] == 384
