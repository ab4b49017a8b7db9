"""Tests of prefill and decode servers: answers equal those of one server, also without the prefill server."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from .replaying import in_time, wait_in_time
from .servers import NO_GRAMMARS, TIMEOUT, Launcher, Server, ThreadServer, refused_start, until
from .test_prefill_replicas import BLOCK, bodies, ids

SIZE = ("--max-total-tokens", "16384", "--set", "transfer.bytes=1GB", "--set", "kv-tiers.buffer_mib=64", *NO_GRAMMARS)
CHUNKS = ("--chunked-prefill-size", "256")


def secret_file(folder: Path, text: str) -> tuple[str, str]:
    """Write a file with a secret, and return the option that names it."""
    file = folder / f"{text}.secret"
    file.write_text(f"{text}: a secret of several servers")
    return "--set", f"transfer.secret_file={file}"


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The option with the common secret of both servers."""
    return secret_file(tmp_path_factory.mktemp("secrets"), "shared")


@pytest.fixture(scope="module")
def single(module_launcher: Launcher) -> ThreadServer:
    """A server without a role, which computes prompts and outputs."""
    return module_launcher.in_thread(*SIZE)


@pytest.fixture(scope="module")
def prefill(module_launcher: Launcher, secret: tuple[str, str]) -> Server:
    """A prefill server, which computes prompts."""
    return module_launcher("--role", "prefill", "--prefill-port", "0", *SIZE, *CHUNKS, *secret)


@pytest.fixture(scope="module")
def address(prefill: Server) -> str:
    """The address of the prefill server that decode servers connect to."""
    return str(prefill.info()["prefill_address"])


@pytest.fixture(scope="module")
def decode(module_launcher: Launcher, address: str, secret: tuple[str, str]) -> Server:
    """A decode server, connected to the prefill server."""
    return module_launcher("--role", "decode", "--prefill-servers", address, *SIZE, *secret)


def received(decode: Server) -> int:
    """Return the number of prompts that the decode server received."""
    return int(decode.info()["kv_stores"]["transfers"]["received"])


def loaded(decode: Server) -> int:
    """Return the number of received blocks that the decode server loaded."""
    return int(decode.info()["kv_stores"]["tiers"]["transfer"]["loaded_blocks"])


def serves(decode: Server) -> bool:
    """Return True if all prefill servers are connected."""
    return all(server["failure"] is None for server in decode.info()["prefill_servers"])


def test_outputs_are_those_of_one_server(single: ThreadServer, decode: Server, prefill: Server) -> None:
    before, blocks = received(decode), loaded(decode)
    greedy = {"temperature": 0, "max_new_tokens": 24}
    seeded = {"temperature": 1.2, "top_p": 0.9, "sampling_seed": 7, "max_new_tokens": 24}
    for seed, params in enumerate((greedy, seeded, {**greedy, "frequency_penalty": 1.5})):
        body = {"input_ids": ids(seed, 700), "sampling_params": params}
        assert decode.generate(body)["output_ids"] == single.generate(body)["output_ids"]
    assert received(decode) - before == 3
    assert loaded(decode) - blocks == 3 * (699 // BLOCK), "the decode engine computed no whole block of a prompt"
    until(prefill.is_whole, "the prefill server is idle")


def test_a_prefill_server_refuses_to_generate(prefill: Server) -> None:
    for path, body in (
        ("/generate", {"text": "Once", "sampling_params": {"max_new_tokens": 4}}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}),
    ):
        answer = prefill.post(path, body)
        assert answer.status_code == 400
        assert "send the request to a decode server" in answer.text
    assert prefill.get("/health_generate").status_code == 200


def test_a_prefill_server_is_killed_under_load_and_comes_back(
    single: ThreadServer,
    decode: Server,
    prefill: Server,
    address: str,
    secret: tuple[str, str],
    launch: Launcher,
    tmp_path: Path,
) -> None:
    requests = bodies(100, 12)
    expected = [single.generate(body)["output_ids"] for body in requests]
    computed = prefill.info()["kv_stores"]["tiers"]["transfer"]["stored_blocks"]

    async def scene() -> list[Any]:
        async with httpx.AsyncClient(base_url=decode.url, timeout=TIMEOUT) as client:
            tasks = [asyncio.create_task(client.post("/generate", json=body)) for body in requests]
            await asyncio.to_thread(
                wait_in_time,
                lambda: prefill.info()["kv_stores"]["tiers"]["transfer"]["stored_blocks"] > computed,
                "prompts are computed",
            )
            in_time(not all(task.done() for task in tasks), "requests are in flight")
            os.killpg(prefill.process.pid, signal.SIGKILL)
            return [answer.json() for answer in await asyncio.gather(*tasks)]

    answers = asyncio.run(scene())
    assert [answer.get("output_ids", answer) for answer in answers] == expected
    until(decode.is_whole, "nothing is left")
    assert not serves(decode)
    assert "prompts are computed here" in decode.log
    launch("--role", "prefill", "--prefill-port", address.rpartition(":")[2], *SIZE, *secret)
    until(lambda: serves(decode), "the prefill server is used again")
    before, body = received(decode), bodies(200, 1)[0]
    assert decode.generate(body)["output_ids"] == single.generate(body)["output_ids"]
    assert received(decode) - before == 1
    refused = {
        "the secret has to be the same": secret_file(tmp_path, "other"),
        "dtype is 'torch.float32' there and 'torch.bfloat16' here": (*secret, "--dtype", "bfloat16"),
    }
    for message, options in refused.items():
        connection = ("--deployment", "thread", "--role", "decode", "--prefill-servers", address)
        assert message in refused_start(*connection, *options)
    assert "Traceback" not in decode.log


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--role", "prefill"), "--role prefill needs a secret of at least 16 bytes, which is missing"),
        (("--role", "decode"), "--role decode needs servers that compute its prompts"),
        (("--prefill-servers", "127.0.0.1:1"), "add --role decode"),
        (("--role", "decode", "--prefill-servers", "http://127.0.0.1:1"), "must be HOST:PORT"),
        (("--role", "decode", "--prefill-servers", "10.0.0.1:1"), "--set transfer.host=eth0"),
        (("--role", "prefill", "--prefill-replicas", "1"), "contradict each other"),
    ],
)
def test_options_that_do_not_fit_are_refused(flags: tuple[str, ...], message: str) -> None:
    assert message in refused_start(*flags)
