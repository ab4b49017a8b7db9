"""Tests of ``--prefill-replicas 1``: answers equal those of a single engine, also when engines are killed."""

from __future__ import annotations

import asyncio
import copy
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from .replaying import in_time, replayed, wait_in_time
from .servers import TIMEOUT, Launcher, Server, ThreadServer, refused_start, until
from .test_replicas import is_whole

TEXT = "Tell me about the history of the city of Paris, from its beginnings to this day, and about its rivers. "
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
BLOCK = 64
PAIR = ("--deployment", "thread", "--prefill-replicas", "1")
SMALL_BUFFERS = ("--set", "kv-tiers.buffer_mib=64")


@pytest.fixture(scope="module")
def single(module_launcher: Launcher) -> ThreadServer:
    """A server with a single engine."""
    return module_launcher.in_thread("--enable-cache-report", "--max-total-tokens", "16384")


@pytest.fixture(scope="module")
def paired(module_launcher: Launcher) -> Server:
    """A server with a decode engine, number 0, and a prefill engine, number 1."""
    chunks = ("--chunked-prefill-size", "256", "--set", "transfer.bytes=1GB", *SMALL_BUFFERS)
    return module_launcher("--enable-cache-report", "--prefill-replicas", "1", "--max-total-tokens", "16384", *chunks)


def ids(seed: int, length: int) -> list[int]:
    """Return the token ids of a prompt that is unique for each seed."""
    return [50 + (seed * 7919 + position * position) % 700 for position in range(length)]


def stores(server: Server) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the descriptions of the KV stores of the decode engine and of the prefill engine."""
    decode, prefill = server.info()["replica_states"]
    return decode["kv_stores"], prefill["kv_stores"]


def transfers(server: Server) -> tuple[int, int, int]:
    """Return the numbers of prompts that were sent, received, and too late."""
    decode, prefill = (state["transfers"] for state in stores(server))
    return prefill["sent"], decode["received"], decode["late"]


def without_names(answer: Any) -> Any:
    """Return an answer without the fields that differ from call to call."""
    if isinstance(answer, dict):
        ignored = {"id", "created", "e2e_latency"}
        return {key: without_names(value) for key, value in answer.items() if key not in ignored}
    return [without_names(value) for value in answer] if isinstance(answer, list) else answer


def comparable(answer: Any) -> Any:
    """Return an object that is equal to answers with the same fields apart from ids, times and rounding."""
    answer = without_names(answer)
    if isinstance(answer, dict):
        return {key: comparable(value) for key, value in answer.items()}
    if isinstance(answer, list):
        return [comparable(value) for value in answer]
    return pytest.approx(answer, abs=1e-3) if isinstance(answer, float) else answer


NATIVE: dict[str, dict[str, Any]] = {
    "greedy": {"input_ids": ids(1, 700), "sampling_params": {"temperature": 0, "max_new_tokens": 24}},
    "seeded": {
        "input_ids": ids(2, 300),
        "sampling_params": {"temperature": 1.2, "top_p": 0.9, "sampling_seed": 7, "max_new_tokens": 24},
    },
    "logprobs": {
        "input_ids": ids(3, 200),
        "return_logprob": True,
        "top_logprobs_num": 2,
        "sampling_params": {"temperature": 0, "max_new_tokens": 5},
    },
    "logprobs of the prompt": {
        "input_ids": ids(4, 200),
        "return_logprob": True,
        "logprob_start_len": 0,
        "sampling_params": {"temperature": 0, "max_new_tokens": 5},
    },
    "whole blocks": {"input_ids": ids(5, 2 * BLOCK), "sampling_params": {"temperature": 0, "max_new_tokens": 9}},
    "a block and a token": {"input_ids": ids(6, BLOCK + 1), "sampling_params": {"temperature": 0, "max_new_tokens": 9}},
    "a short prompt": {"input_ids": ids(7, BLOCK), "sampling_params": {"temperature": 0, "max_new_tokens": 9}},
    "one token": {"input_ids": ids(8, 200), "sampling_params": {"temperature": 0, "max_new_tokens": 1}},
    "penalties": {
        "input_ids": ids(9, 300),
        "sampling_params": {"temperature": 0, "max_new_tokens": 24, "frequency_penalty": 1.5, "min_new_tokens": 5},
    },
    "a stop text": {"text": TEXT * 4, "sampling_params": {"temperature": 0, "max_new_tokens": 40, "stop": ["a", "e"]}},
}
CHATS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "max_tokens": 24},
    "two seeded choices": {"temperature": 1.0, "seed": 11, "n": 2, "max_tokens": 16},
    "structured output": {
        "temperature": 0,
        "max_tokens": 60,
        "response_format": {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}},
    },
    "logprobs": {"temperature": 0, "max_tokens": 6, "logprobs": True, "top_logprobs": 3},
}


@pytest.mark.parametrize("name", NATIVE)
def test_a_native_answer_is_that_of_one_engine(single: ThreadServer, paired: Server, name: str) -> None:
    before = transfers(paired)
    expected = single.generate(NATIVE[name])
    assert without_names(paired.generate(NATIVE[name])) == comparable(expected)
    is_sent = name not in ("a short prompt", "one token", "logprobs of the prompt")
    assert expected["meta_info"]["cached_tokens"] <= 8, "the prompts of these tests hardly begin alike"
    assert [now - then for now, then in zip(transfers(paired), before, strict=True)] == [is_sent, is_sent, 0]


@pytest.mark.parametrize("name", CHATS)
def test_a_chat_is_that_of_one_engine(single: ThreadServer, paired: Server, name: str) -> None:
    content = f"{name}: {TEXT * 5}"
    body = {"messages": [{"role": "user", "content": content}], **CHATS[name]}
    before = transfers(paired)
    expected, answer = (server.post("/v1/chat/completions", body).json() for server in (single, paired))
    assert without_names(answer) == comparable(expected)
    choices = body.get("n", 1)
    sent, received, late = (now - then for now, then in zip(transfers(paired), before, strict=True))
    assert (sent, late) == (choices, 0)
    assert 1 <= received <= choices, "a choice may find the prompt of an earlier one in the prefix cache"


def test_a_stream_is_that_of_one_engine(single: ThreadServer, paired: Server) -> None:
    body = {"messages": [{"role": "user", "content": f"stream: {TEXT * 5}"}], "temperature": 0, "max_tokens": 20}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    expected, events = (server.events("/v1/chat/completions", body) for server in (single, paired))

    def text(events: list[Any]) -> str:
        return "".join(c["delta"].get("content") or "" for event in events for c in event.get("choices", ()))

    assert text(events) == text(expected) != ""
    assert events[-1]["usage"] == expected[-1]["usage"]


def test_the_decode_engine_computes_only_the_rest(paired: Server) -> None:
    before = copy.deepcopy(stores(paired))
    answer = paired.generate({"input_ids": ids(20, 1000), "sampling_params": {"max_new_tokens": 4}})
    assert answer["meta_info"]["cached_tokens_details"] == {"device": 0, "host": 0}, "nothing was computed before"
    decode, prefill = (state["tiers"]["transfer"] for state in stores(paired))
    assert decode["loaded_blocks"] - before[0]["tiers"]["transfer"]["loaded_blocks"] == 999 // BLOCK
    assert prefill["stored_blocks"] - before[1]["tiers"]["transfer"]["stored_blocks"] == 1000 // BLOCK
    again = paired.generate({"input_ids": ids(20, 1000), "sampling_params": {"max_new_tokens": 4}})
    assert again["meta_info"]["cached_tokens"] == 999
    lines = until(
        lambda: [line for line in paired.get("/metrics").text.splitlines() if "kv_transfers_received_total{" in line],
        "the metric is there",
    )
    assert any('dp_rank="0"' in line or float(line.split()[-1]) > 0 for line in lines)


def test_roles_are_reported(paired: Server) -> None:
    assert [state["role"] for state in paired.get("/health").json()["replicas"]] == ["decode", "prefill"]
    assert paired.info()["prefill_replicas"] == 1
    assert paired.post("/flush_cache").status_code == 200
    assert [state["tiers"]["transfer"]["blocks"] for state in stores(paired)] == [0, 0]


def test_the_stores_listen_on_loopback_only(paired: Server) -> None:
    assert all(state["transfers"]["address"].startswith("tcp://127.0.0.1:") for state in stores(paired))


def engine(server: Server, number: int) -> int:
    """Return the process id of the engine with a number."""
    return server.engine_pids()[number]


def bodies(first: int, count: int) -> list[dict[str, Any]]:
    """Return requests with long prompts that have no common prefix."""
    params = {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True}
    return [{"input_ids": ids(seed, 900), "sampling_params": params} for seed in range(first, first + count)]


@replayed
@pytest.mark.parametrize("number", [1, 0], ids=["prefill", "decode"])
def test_an_engine_is_killed_with_requests_in_flight(single: ThreadServer, paired: Server, number: int) -> None:
    until(lambda: len(paired.engine_pids()) == 2 and is_whole(paired), "both engines are idle")
    paired.post("/flush_cache")
    victim, requests = engine(paired, number), bodies(100 * number + 100, 12)
    expected = [single.generate(body)["output_ids"] for body in requests]
    computed = stores(paired)[1]["tiers"]["transfer"]["stored_blocks"]

    async def scene() -> list[Any]:
        async with httpx.AsyncClient(base_url=paired.url, timeout=TIMEOUT) as client:
            tasks = [asyncio.create_task(client.post("/generate", json=body)) for body in requests]
            await asyncio.to_thread(
                wait_in_time,
                lambda: stores(paired)[1]["tiers"]["transfer"]["stored_blocks"] > computed,
                "prompts are computed",
            )
            in_time(not all(task.done() for task in tasks), "requests are in flight")
            os.kill(victim, signal.SIGKILL)
            return [answer.json() for answer in await asyncio.gather(*tasks)]

    answers = asyncio.run(scene())
    assert [answer.get("output_ids", answer) for answer in answers] == expected
    until(lambda: len(paired.engine_pids()) == 2 and is_whole(paired), "the engine serves again")
    before, body = transfers(paired), bodies(100 * number + 150, 1)[0]
    assert paired.generate(body)["output_ids"] == single.generate(body)["output_ids"]
    assert [now - then for now, then in zip(transfers(paired), before, strict=True)] == [1, 1, 0]
    assert "Traceback" not in paired.log


def test_many_requests_at_once_leave_nothing(single: ThreadServer, paired: Server) -> None:
    until(lambda: is_whole(paired), "both engines are idle")
    requests = bodies(500, 16)
    expected = [single.generate(body)["output_ids"] for body in requests]
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda body: paired.generate(body)["output_ids"], requests))
    assert answers == expected
    until(lambda: is_whole(paired), "nothing is left")


def test_clients_that_leave_abort_on_both_engines(paired: Server) -> None:
    until(lambda: is_whole(paired), "both engines are idle")
    params = {"max_new_tokens": 3000, "ignore_eos": True}

    def leave(seed: int) -> None:
        with httpx.Client(base_url=paired.url, timeout=TIMEOUT) as client:
            body = {"input_ids": ids(seed, 900), "sampling_params": params, "stream": True}
            with client.stream("POST", "/generate", json=body) as answer:
                next(answer.iter_lines())

    threads = [threading.Thread(target=leave, args=(600 + number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: is_whole(paired), "nothing is left")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--kv-store", "host", "--set", "host.bytes=1GB", *SMALL_BUFFERS), "needs a KV store that can transfer"),
        (("--prefix-cache", "none"), "--prefix-cache none"),
    ],
)
def test_what_cannot_be_served_is_refused(flags: tuple[str, ...], message: str) -> None:
    assert message in refused_start(*PAIR, *flags)


def test_a_secret_of_the_user_is_used(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("short")
    output = refused_start(*PAIR, "--set", f"transfer.secret_file={file}")
    assert "needs a secret of at least 16 bytes, which has 5 bytes" in output
