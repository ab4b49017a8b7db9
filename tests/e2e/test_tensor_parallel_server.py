"""A server with two tensor-parallel ranks, started as users start it."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

from .replaying import in_time, replayed
from .servers import command_of


def worker_ranks(server: Any) -> list[int]:
    """Return the process ids of the worker ranks, which are all but the first."""
    return [pid for pid in server.members() if b"sglang_plug.engine.tensor_parallel.worker_rank" in command_of(pid)]


@replayed
def test_it_serves_until_a_rank_is_gone(launch: Any) -> None:
    server = launch("--tp", "2")
    info = server.info()
    assert info["tp_size"] == 2 and info["components"]["executor"]["name"] == "processes"
    assert len(worker_ranks(server)) == 1
    chat = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
    answer = server.post("/v1/chat/completions", chat).json()
    assert "Paris" in answer["choices"][0]["message"]["content"]
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    constrained = {"text": "A number: ", "sampling_params": {"json_schema": json.dumps(schema), "max_new_tokens": 40}}
    assert isinstance(json.loads(server.generate(constrained)["text"])["n"], int)
    server.wait_whole()
    with server.client.stream(
        "POST",
        "/generate",
        json={"text": "Once", "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}, "stream": True},
    ) as stream:
        lines = (line for line in stream.iter_lines() if line)
        next(lines)
        os.kill(worker_ranks(server)[0], signal.SIGKILL)
        events = list(lines)
    assert events[-1] == "data: [DONE]"
    in_time("error" in events[-2], "the stream had not ended")
    assert json.loads(events[-2].removeprefix("data: "))["code"] == 503
    assert server.exit_code() == 1
    server.wait_gone()
    assert "rank 1 of the model ended (signal 9)" in server.log


def test_it_ends_with_all_of_its_processes(launch: Any) -> None:
    server = launch("--tp-size", "2", "--set", "processes.threads=1")
    assert len(worker_ranks(server)) == 1
    server.process.send_signal(signal.SIGTERM)
    assert server.exit_code() == 0
    server.wait_gone()
    assert "Traceback" not in server.log
