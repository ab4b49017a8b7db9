"""The reference of routes covers every name, and its example keeps the contract on a real server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sglang_plug_api.plugin
from sglang_plug.testing import check_route
from sglang_plug.testing.server.running_server import RunningServer, running_server

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "route-reference.md"
BLOCK = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)
KEY = "sesame"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("poem")
    for name, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    with running_server(("--device", "cpu", "--plugins-dir", str(root / "my-plugins")), KEY) as running:
        yield running


def test_the_page_is_what_would_be_written() -> None:
    command = [sys.executable, str(DOCS / "generate_route_reference.py"), "--check"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_public_name_is_described() -> None:
    page = PAGE.read_text(encoding="utf-8")
    names = set(sglang_plug_api.plugin.__all__)
    described = set(re.findall(r"^### (\w+)$", page, re.MULTILINE))
    described |= set(re.findall(r"^\*\*`(\w+)\(", page, re.MULTILINE)) | set(re.findall(r"`(\w+)`", page))
    assert names - described == set()


@pytest.mark.whole_engine
def test_the_example_keeps_the_contract(server: RunningServer) -> None:
    requests = [
        ("POST", "/v1/poem", {"subject": "rain"}),
        ("POST", "/v1/poem", {"subject": "wind", "lines": 2, "stream": True}),
    ]
    check_route("poem", requests, server=server.url, key=KEY)


@pytest.mark.whole_engine
def test_the_stream_has_the_text_of_the_whole_answer(server: RunningServer) -> None:
    def send(stream: bool) -> str:
        body = json.dumps({"subject": "rain", "stream": stream}).encode()
        return server.send("POST", "/v1/poem", body).body.decode()

    whole = json.loads(send(stream=False))
    lines = [line.removeprefix("data: ") for line in send(stream=True).splitlines() if line]
    assert lines[-1] == "[DONE]"
    events = [json.loads(line) for line in lines[:-1]]
    assert "".join(event.get("content", "") for event in events) == whole["poem"]
    assert events[-1] == {"finish_reason": whole["finish_reason"]}
