"""The application on a real Ray cluster of this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

if importlib.util.find_spec("ray") is None:
    pytest.skip("ray is not installed", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parent))
from processes import descendants, engines, free_port, is_running, ports_beyond_loopback, start, until

HERE = Path(__file__).parent
ANY_CALL = "/ray.serve.ASGIService/HandleRequest"
PROMPTS = [f"Number {number}: the capital of France is" for number in range(24)]


class Application:
    """The application in another process."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log.txt"
        self.arguments: dict[str, Any] = {
            "options": {"device": "cpu", "max_total_tokens": 4096, "file_storage_path": str(folder / "files")},
            "engines": 2,
            "ingress_cpus": 0.5,
            "drain_seconds": 60,
        }
        port = free_port()
        command = [str(HERE / "application_server.py"), str(port), json.dumps(self.arguments)]
        self.process = start(command, self.log, stdin=subprocess.PIPE)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=180)
        self.times = 1

    def wait_running(self) -> None:
        def runs() -> bool:
            assert self.process.poll() is None, self.log.read_text()[-6000:]
            return self.log.read_text().count("RUNNING") == self.times

        until(runs, "the deployment", self.log)

    def update(self, arguments: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.times += 1
        self.process.stdin.write(json.dumps(arguments) + "\n")
        self.process.stdin.flush()

    def serving(self, number: int) -> bool:
        answer = self.client.get("/health")
        if answer.status_code != 200:
            return False
        replicas = answer.json()["replicas"] if answer.content else [{"serves": True}]
        return len(replicas) == number and all(replica["serves"] for replica in replicas)

    def generate(self, prompt: str, tokens: int = 16) -> httpx.Response:
        sampling = {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0}
        return self.client.post("/generate", json={"text": prompt, "sampling_params": sampling})


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """Return the application with two engines, warmed up."""
    running = Application(tmp_path_factory.mktemp("serve"))
    try:
        running.wait_running()
        until(lambda: running.serving(2), "two engines that serve", running.log)
        yield running
    finally:
        running.client.close()
        if running.process.poll() is None:
            stop(running)


def stop(running: Application) -> None:
    assert running.process.stdin is not None
    running.process.stdin.close()
    try:
        running.process.wait(90)
    except subprocess.TimeoutExpired:
        running.process.kill()
        raise


def test_only_ports_that_need_the_token_can_be_reached_from_outside(application: Application) -> None:
    """Ray binds those of Serve's replicas, for calls between deployments, to all interfaces."""
    import grpc

    processes = descendants(application.process.pid)
    replicas = [pid for pid, command in processes.items() if command.startswith("ray::ServeReplica")]
    assert len(replicas) == 4
    others = set(processes) - set(replicas)
    assert ports_beyond_loopback([application.process.pid, *others]) == set()
    for port in ports_beyond_loopback(replicas):
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary(ANY_CALL)
            with pytest.raises(grpc.RpcError) as refusal:
                call(b"", timeout=60)
        assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_chat_answers_and_streams(application: Application) -> None:
    body = {"model": "any", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0}
    answer = application.client.post("/v1/chat/completions", json=body)
    text = answer.json()["choices"][0]["message"]["content"]
    assert answer.status_code == 200 and text
    with application.client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as stream:
        events = [line.removeprefix("data: ") for line in stream.iter_lines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    pieces = [json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events]
    assert "".join(pieces) == text
    assert len(pieces) > 2


def test_both_engines_are_used(application: Application) -> None:
    def both_run() -> bool:
        states = application.client.get("/server_info").json()["replica_states"]
        return len(states) == 2 and all(state["running"] for state in states)

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        requests = [pool.submit(application.generate, prompt, 100) for prompt in PROMPTS]
        until(both_run, "requests on both engines", application.log)
        assert {request.result().status_code for request in requests} == {200}


def test_files_and_batches_work(application: Application) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "One", "max_tokens": 4}}
    upload = {"file": ("lines.jsonl", json.dumps(line) + "\n")}
    file = application.client.post("/v1/files", data={"purpose": "batch"}, files=upload).json()
    body = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    batch = application.client.post("/v1/batches", json=body).json()

    def is_complete() -> bool:
        batch.update(application.client.get(f"/v1/batches/{batch['id']}").json())
        return batch["status"] == "completed"

    until(is_complete, "the end of a batch", application.log)
    output = application.client.get(f"/v1/files/{batch['output_file_id']}/content").json()
    assert (output["custom_id"], output["response"]["status_code"]) == ("a", 200)


def test_requests_survive_the_death_of_an_engine(application: Application) -> None:
    before = engines(application.process.pid)
    assert len(before) == 2
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        requests = [pool.submit(application.generate, prompt, 48) for prompt in PROMPTS]
        until(lambda: all_run(application, len(PROMPTS)), "all requests in flight", application.log)
        os.kill(before[0], signal.SIGKILL)
        answers = [request.result() for request in requests]
    assert [answer.status_code for answer in answers] == [200] * len(PROMPTS)
    until(lambda: application.serving(2), "the replacement of the engine", application.log)
    assert before[0] not in engines(application.process.pid)


def all_run(application: Application, number: int) -> bool:
    info = application.client.get("/server_info").json()
    return bool(info["running"] + info["waiting"] >= number // 2)


def test_a_rolling_update_fails_no_request(application: Application) -> None:
    stopping = threading.Event()

    def ask_always(prompt: str) -> list[int]:
        statuses = []
        while not stopping.is_set():
            statuses.append(application.generate(prompt, 8).status_code)
        return statuses

    options = {**application.arguments["options"], "max_total_tokens": 3000}
    with ThreadPoolExecutor(3) as pool:
        requests = [pool.submit(ask_always, prompt) for prompt in PROMPTS[:3]]
        try:
            application.update({**application.arguments, "options": options})
            application.wait_running()
            until(lambda: updated(application), "two engines of the new version", application.log)
        finally:
            stopping.set()
        statuses = [status for request in requests for status in request.result()]
    assert set(statuses) == {200}


def updated(application: Application) -> bool:
    if not application.serving(2):
        return False
    info: dict[str, Any] = application.client.get("/server_info").json()
    return bool(info["max_total_tokens"] == 3000)


def test_the_end_leaves_no_process(application: Application) -> None:
    processes = descendants(application.process.pid)
    assert engines(application.process.pid)
    stop(application)
    until(lambda: not any(map(is_running, processes)), "the end of every process", application.log)
