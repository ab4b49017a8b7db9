"""Tests of ``--replicas 2``: one server in front of two engines, one of which is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import sglang_plug_models.demo as demo

from .replaying import in_time, replayed, wait_in_time
from .servers import NO_GRAMMARS, TIMEOUT, Launcher, Server, command_of, until

PARIS = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
LENGTH = 120
LONG = {"sampling_params": {"max_new_tokens": LENGTH, "ignore_eos": True, "temperature": 0}}
WHOLE, STREAMED = 45, 15


@pytest.fixture(scope="module")
def pair(module_launcher: Launcher) -> Server:
    """A server with two replicas that take turns."""
    flags = ("--replicas", "2", "--routing-policy", "round-robin", "--max-total-tokens", "16384")
    return module_launcher(*flags, *NO_GRAMMARS)


def is_whole(server: Server) -> bool:
    """Return True if every replica serves, no sequence runs or waits, and no KV slot is lost."""
    states = server.info()["replica_states"]
    slots = [state["slots"] for state in states]
    return (
        len(states) == 2
        and not any(state["running"] or state["waiting"] for state in states)
        and all(pool["free"] + pool["cached"] == pool["capacity"] for pool in slots)
    )


def serving(server: Server) -> list[bool]:
    """Return for each replica whether it serves, according to ``/health``."""
    return [replica["serves"] for replica in server.get("/health").json()["replicas"]]


def gauge(server: Server, name: str) -> dict[str, float]:
    """Return the value of a metric for each replica."""
    families = text_string_to_metric_families(server.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples if sample.name == f"sglang:{name}"]
    return {sample.labels["dp_rank"]: sample.value for sample in samples}


def test_both_replicas_serve_and_are_reported(pair: Server) -> None:
    until(lambda: len(pair.engine_pids()) == 2, "two processes of engines")
    before = gauge(pair, "queue_time_seconds_count")
    answers = {pair.post("/v1/chat/completions", PARIS).json()["choices"][0]["message"]["content"] for _ in range(4)}
    assert len(answers) == 1 and "Paris" in answers.pop()
    until(lambda: all(gauge(pair, "queue_time_seconds_count")[rank] >= before[rank] + 2 for rank in "01"), "two each")
    assert [load["dp_rank"] for load in pair.get("/v1/loads").json()["loads"]] == [0, 1]
    assert [load["dp_rank"] for load in pair.get("/get_load").json()] == [0, 1]
    assert pair.get("/load").json()["server_load"] == 0
    info = pair.info()
    assert (info["replicas"], info["deployment"], info["routing_policy"]) == (2, "process", "round-robin")
    assert info["max_running_requests"] == sum(state["max_running_requests"] for state in info["replica_states"])
    for state in info["replica_states"]:
        learned = {
            name: value for name, value in state["step_time"]["coefficients"].items() if name.startswith("decode")
        }
        assert any(value > 0 for value in learned.values()), "each has learned how long its steps take"
    assert serving(pair) == [True, True]
    assert pair.get("/health_generate").status_code == 200
    assert pair.post("/flush_cache").status_code == 200


def test_a_batch_of_prompts_is_served_by_both(pair: Server) -> None:
    texts = [f"Count to {number}:" for number in range(8)]
    body = {"text": texts, "sampling_params": {"max_new_tokens": 8, "temperature": 0}}
    together = [answer["text"] for answer in pair.generate(body)]
    alone = [pair.generate({**body, "text": text})["text"] for text in texts]
    assert together == alone


async def whole(client: httpx.AsyncClient, number: int) -> dict[str, Any]:
    """Return an answer that is not streamed."""
    answer = await client.post("/generate", json={"text": f"Story {number}:", **LONG})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


async def streamed(client: httpx.AsyncClient, number: int) -> tuple[int, str | None]:
    """Return the number of output tokens of a stream and its error; check that it ended in order."""
    tokens, error, lines = 0, None, list[str]()
    async with client.stream("POST", "/generate", json={"text": f"Story {number}:", **LONG, "stream": True}) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line:
                lines.append(line)
    assert lines[-1] == "data: [DONE]"
    for line in lines[:-1]:
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            error = event["error"]["message"]
        else:
            tokens = event["meta_info"]["completion_tokens"]
    return tokens, error


@replayed
def test_an_engine_is_killed_with_sixty_requests_in_flight(pair: Server) -> None:
    until(lambda: len(pair.engine_pids()) == 2 and is_whole(pair), "both replicas are idle")
    victim = pair.engine_pids()[0]

    async def scene() -> tuple[list[dict[str, Any]], list[tuple[int, str | None]]]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=pair.url, timeout=TIMEOUT, limits=limits) as client:
            answers = [asyncio.create_task(whole(client, number)) for number in range(WHOLE)]
            streams = [asyncio.create_task(streamed(client, WHOLE + number)) for number in range(STREAMED)]
            await asyncio.to_thread(wait_in_time, lambda: sum(pair.load()) > 50, "the requests have arrived")
            os.kill(victim, signal.SIGKILL)
            return await asyncio.gather(*answers), await asyncio.gather(*streams)

    answers, streams = asyncio.run(scene())
    assert [answer["meta_info"]["completion_tokens"] for answer in answers] == [LENGTH] * WHOLE
    failed = [error for _, error in streams if error is not None]
    in_time(failed, "streams had begun on the replica")
    assert all("signal 9" in error and "replica" in error for error in failed)
    assert all(tokens == LENGTH for tokens, error in streams if error is None)
    until(lambda: len(pair.engine_pids()) == 2 and is_whole(pair), "the replica serves again")
    assert serving(pair) == [True, True]
    assert command_of(victim) == b""
    for name in ("num_running_reqs", "num_queue_reqs", "num_used_tokens"):  # not the numbers of its last step
        assert gauge(pair, name) == {"0": 0, "1": 0}, name
    before = gauge(pair, "queue_time_seconds_count")
    for number in range(4):
        pair.generate({"text": f"{number}", "sampling_params": {"max_new_tokens": 1}})
    until(lambda: all(gauge(pair, "queue_time_seconds_count")[rank] > before[rank] for rank in "01"), "both serve")
    assert "Traceback" not in pair.log


def test_weights_are_updated_on_both_or_on_none(pair: Server, tmp_path: Any) -> None:
    (folder,) = [file.parent for file in Path(demo.__file__).parent.glob("*/tokenizer.json")]
    refused = pair.post("/update_weights_from_disk", {"model_path": str(tmp_path)})
    assert refused.status_code == 400, refused.text
    assert pair.post("/update_weights_from_disk", {"model_path": str(folder)}).json()["success"]
    answers = {pair.post("/v1/chat/completions", PARIS).json()["choices"][0]["message"]["content"] for _ in range(2)}
    assert len(answers) == 1 and "Paris" in answers.pop()
    assert pair.info()["model_path"] == str(folder)


def test_the_server_ends_with_all_its_engines(pair: Server) -> None:
    """SIGTERM ends the server and all of its engines; this is the last test of the server."""
    until(lambda: len(pair.engine_pids()) == 2 and is_whole(pair), "both replicas are idle")
    os.kill(pair.engine_pids()[0], signal.SIGKILL)
    pair.signal(signal.SIGTERM)
    assert pair.exit_code() == 0
    pair.wait_gone()
    assert "Traceback" not in pair.log


def test_the_engine_in_a_thread(launch: Launcher) -> None:
    server = launch("--deployment", "thread")
    assert server.engine_pids() == []
    answer = server.post("/v1/chat/completions", PARIS).json()
    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert server.get("/health").content == b""
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0
    server.wait_gone()
