"""The requests of clients that disconnect end and free their KV slots, without an effect on other clients."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import httpx

from .replaying import in_time, replayed
from .servers import TIMEOUT

CLIENTS = 40
PROMPT = "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n"


def body_of(index: int, tokens: int) -> tuple[str, dict[str, Any]]:
    """Return path and body of a request; the kind depends on ``index``, and every other request streams."""
    stream = index % 2 == 0
    params = {"max_new_tokens": tokens, "ignore_eos": True}
    chat = {"messages": [{"role": "user", "content": f"Tell me a story, number {index}."}], "max_tokens": tokens}
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("/generate", {"text": f"{PROMPT}{index}", "sampling_params": params}),
        ("/generate", {"text": [PROMPT, f"{index}"], "sampling_params": {**params, "n": 2}}),
        ("/v1/chat/completions", {**chat, "ignore_eos": True, "n": 1 + index % 3}),
        ("/v1/completions", {"prompt": [PROMPT, "x"], "max_tokens": tokens, "ignore_eos": True, "logprobs": 1}),
    ]
    path, body = kinds[index // 2 % len(kinds)]
    return path, {**body, "stream": stream}


async def leave(server: Any, index: int, seconds: float, tokens: int) -> None:
    """Send a request and drop the connection after a while, sometimes by aborting it."""
    path, body = body_of(index, tokens)
    raw = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(raw)}\r\n\r\n"
    cut = len(raw) // 2 if index % 10 == 9 else len(raw)  # some leave in the middle of the body
    writer.write(head.encode() + raw[:cut])
    try:
        async with asyncio.timeout(seconds):
            while await reader.read(65536):
                pass
    except TimeoutError:
        pass
    if index % 4 == 0:
        writer.transport.abort()
    else:
        writer.close()


async def crowd(server: Any, tokens: int) -> None:
    draw = random.Random(5)
    await asyncio.gather(*(leave(server, index, draw.random() * 0.6, tokens) for index in range(CLIENTS)))


async def test_forty_clients_leave_and_others_stay(server: Any) -> None:
    body = {"text": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": 60}}
    expected = server.generate(body)["text"]

    async def stay(client: httpx.AsyncClient) -> str:
        return (await client.post("/generate", json=body)).json()["text"]

    async with httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT) as client:
        *texts, _ = await asyncio.gather(*(stay(client) for _ in range(5)), crowd(server, 1500))
    assert texts == [expected] * 5
    server.wait_whole()
    assert server.generate(body)["text"] == expected


async def test_forty_clients_leave_a_queue(narrow: Any) -> None:
    await crowd(narrow, 250)
    narrow.wait_whole()
    assert narrow.generate({"text": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": 5}})["text"]
    assert "Traceback" not in narrow.log


@replayed
async def test_a_request_leaves_the_queue_before_it_ran(narrow: Any) -> None:
    narrow.wait_whole()
    params = {"max_new_tokens": 180, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=narrow.url, timeout=TIMEOUT) as client:
        running = [
            asyncio.create_task(client.post("/generate", json={"text": text, "sampling_params": params}))
            for text in ("one", "two")
        ]

        def both_run() -> bool:
            return not any(task.done() for task in running)

        while (await client.get("/server_info")).json()["running"] < 2:
            in_time(both_run(), "two requests run")
        queued = asyncio.create_task(client.post("/generate", json={"text": "three", "sampling_params": params}))
        while (await client.get("/server_info")).json()["waiting"] < 1:
            in_time(both_run(), "a third one waits")
        queued.cancel()
        await asyncio.gather(queued, return_exceptions=True)
        while (await client.get("/server_info")).json()["waiting"]:
            in_time(both_run(), "the third one leaves")
        in_time(both_run(), "the queue was left before there was room")
        for answer in await asyncio.gather(*running):
            assert answer.json()["meta_info"]["completion_tokens"] == 180
    narrow.wait_whole()


@replayed
async def test_an_abandoned_stream_frees_its_slots(server: Any) -> None:
    server.wait_whole()
    body = {"text": PROMPT, "stream": True, "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}}
    async with httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT) as client:
        async with client.stream("POST", "/generate", json=body) as stream:
            lines = stream.aiter_lines()
            for _ in range(5):
                await anext(lines)
            in_time(server.load()[0] == 1, "the stream is running")
            await lines.aclose()
    server.wait_whole()
    assert server.info()["slots"]["running"] == 0


async def test_a_reader_that_is_slow_gets_everything(server: Any) -> None:
    params = {"temperature": 0, "max_new_tokens": 200, "ignore_eos": True}
    body = {"text": PROMPT, "sampling_params": params, "return_logprob": True, "top_logprobs_num": 10}
    expected = server.generate(body)
    raw = json.dumps({**body, "stream": True}).encode()
    head = b"POST /generate HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(raw)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=4096)
    writer.write(head + raw)
    await reader.readexactly(100)
    server.wait_whole()  # computed, or paused until the reader goes on: nothing waits for it
    remaining = await reader.read()
    writer.close()
    *_, last, done, _ = remaining.decode().split("\n\n")
    assert "data: [DONE]" in done
    event = json.loads(last[last.index("data: ") + 6 :])
    assert (event["text"], event["output_ids"]) == (expected["text"], expected["output_ids"])
    assert len(event["meta_info"]["output_top_logprobs"]) == 200
