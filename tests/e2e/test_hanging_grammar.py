"""A grammar that stops answering ends its request, and the server serves on."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest

from .servers import TIMEOUT, until

PLUGIN = """
import hashlib

from sglang_plug import Grammar, GrammarBackend, GrammarSpec, hookimpl

@hookimpl
def register_grammar_backends():
    yield GrammarSpec(name="hanging", target=f"{__name__}:Hanging")

class Hanging(GrammarBackend):
    def refuses(self, constraint):
        return None

    def compile(self, constraint):
        return constraint.source.encode()

    def load(self, constraint, compiled):
        return lambda: Anything(compiled.decode())

class Anything(Grammar):
    may_end = ended = False

    def __init__(self, way):
        self.way, self.accepted = way, 0

    def fill(self, mask, row):
        mask[row] = -1

    def accept(self, token):
        self.accepted += 1
        if self.accepted == 5:
            if self.way == "python":
                while True:
                    pass
            if self.way == "library":  # releases the GIL
                hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
            if self.way == "alone":
                sum(range(10**15))
        return True

    def rollback(self, count):
        self.accepted -= count
"""
TOO_LONG = "following the output takes its grammar too long"
LONG = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 300, "ignore_eos": True}, "stream": True}


@pytest.fixture(scope="module")
def hanging(module_launcher: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server with a grammar backend that hangs in the way that the regex of the request names."""
    file = tmp_path_factory.mktemp("plugin") / "hanging.py"
    file.write_text(PLUGIN)
    return module_launcher(
        "--plugin", str(file), "--grammar-backend", "hanging", "--watchdog-timeout", "8", "--engine-restart"
    )


def wait_served(server: Any) -> None:
    """Wait until a new engine serves requests with a grammar that compiles."""

    def is_well() -> bool:
        answer = ask(server, "well")
        assert answer.status_code in (200, 503), answer.text
        return answer.status_code == 200

    until(is_well, "it serves again")


def ask(server: Any, way: str) -> httpx.Response:
    body = {"text": "x", "sampling_params": {"max_new_tokens": 20, "regex": way, "ignore_eos": True}}
    with httpx.Client(base_url=server.url, timeout=TIMEOUT) as client:
        return client.post("/generate", json=body)


def test_python_without_end_ends_one_request_only(hanging: Any) -> None:
    before = hanging.engine_pid
    with hanging.client.stream("POST", "/generate", json=LONG) as stream:
        lines = stream.iter_lines()
        next(lines)
        answer = ask(hanging, "python")
        assert answer.status_code == 400
        assert TOO_LONG in answer.json()["error"]["message"]
        events = [line for line in lines if line]
    assert events[-1] == "data: [DONE]" and "error" not in events[-2]
    assert ask(hanging, "well").status_code == 200
    assert hanging.engine_pid == before
    hanging.wait_whole()


def test_a_library_without_end_is_named_and_the_engine_restarts(hanging: Any) -> None:
    """The request whose grammar never compiles is refused with 400; others get an error that clients may retry."""
    before, others = hanging.engine_pid, list[httpx.Response]()

    def other() -> None:
        with httpx.Client(base_url=hanging.url, timeout=TIMEOUT) as client:
            others.append(client.post("/generate", json={**LONG, "stream": False}))

    waiting = threading.Thread(target=other)
    waiting.start()
    answer = ask(hanging, "library")
    waiting.join()
    assert (answer.status_code, TOO_LONG in answer.text) == (400, True)
    assert others[0].status_code in (200, 503)
    assert "it waits for the grammar of request " in hanging.log and "Anything)" in hanging.log
    wait_served(hanging)
    assert hanging.engine_pid != before


def test_a_library_that_lets_no_python_run_is_noticed_too(hanging: Any) -> None:
    before = hanging.engine_pid
    answer = ask(hanging, "alone")
    assert answer.status_code == 503
    assert "keeps all of Python waiting" in answer.json()["error"]["message"]
    wait_served(hanging)
    assert "in accept" in hanging.log  # the logged stacks
    assert hanging.engine_pid != before
