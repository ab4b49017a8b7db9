"""The soak's requests, and its checks of a server."""

from __future__ import annotations

import asyncio
import json
import os
import random

import pytest

from benchmarks.soak import (
    GROWTH_LIMIT,
    MIB,
    MORE_HANDLES,
    Call,
    Sender,
    Tally,
    growth,
    handles_of,
    is_alive,
    memory_of,
    more_handles,
    random_call,
    show,
)


def test_calls_are_reproducible_and_of_every_kind() -> None:
    first, second = ([random_call(generator) for _ in range(400)] for generator in (random.Random(3), random.Random(3)))
    assert first == second
    assert {call.status for call in first} == {200, 400}
    assert {call.path for call in first} == {"/generate", "/v1/completions", "/v1/chat/completions"}
    assert {call.leaves_after is None for call in first} == {True, False}
    bodies = [json.loads(call.body) for call in first if call.status == 200]
    assert {body["stream"] for body in bodies} == {True, False}


@pytest.mark.parametrize(
    ("status", "answer", "wrong"),
    [
        (200, b"HTTP/1.1 200 OK\r\n\r\n{}", False),
        (400, b"HTTP/1.1 400 Bad Request\r\n\r\n{}", False),
        (400, b"HTTP/1.1 200 OK\r\n\r\n{}", True),
        (200, b"HTTP/1.1 500 Oh\r\n\r\n{}", True),
        (200, b"", True),
        (200, b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {}\n\ndata: [DONE]\n\n", False),
        (200, b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {}\n\n", True),
        (200, b'HTTP/1.1 200 OK\r\n\r\ndata: {"error":{}}\n\ndata: [DONE]\n\n', True),
    ],
)
async def test_answers_are_judged(status: int, answer: bytes, wrong: bool) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(answer)
        writer.close()

    tally = Tally()
    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        _, port = server.sockets[0].getsockname()
        await Sender(f"http://127.0.0.1:{port}", tally).send(Call("/generate", b"{}", status, None), abruptly=False)
    assert bool(tally.wrong) is wrong
    assert tally.outcomes == {answer[9:12].decode() or "0": 1}


def test_memory_counts_from_half_to_the_end() -> None:
    assert growth([]) == growth([{"api": 5}]) == {}
    looks = [{"api": 1}, {"api": 10 * MIB, "worker": 7}, {"api": 10 * MIB + GROWTH_LIMIT + 1, "worker": 7, "new": 3}]
    assert growth(looks) == {"api": GROWTH_LIMIT + 1, "worker": 0, "new": 0}
    tally = Tally(memory=looks)
    tally.outcomes["200"] = 30
    assert "3.0 requests/s" in show(tally, 10)


def test_many_more_files_or_threads_are_a_leak() -> None:
    first = {"files of api": 10, "threads of api": 5, "files of gone": 9}
    allowed = {"files of api": 10 + MORE_HANDLES, "threads of api": 5 + MORE_HANDLES, "files of new": 900}
    assert more_handles([first, allowed]) == []
    assert more_handles([first, {**allowed, "threads of api": 30}]) == ["5 threads of api became 30"]


def test_this_process() -> None:
    assert memory_of(os.getpid())["api"] > MIB
    assert handles_of(os.getpid())["files of api"] >= 3 and handles_of(os.getpid())["threads of api"] >= 1
    assert is_alive(os.getpid()) and not is_alive(2**22 + 1)
