"""Tests of the commands ``chat`` and ``complete``, with a server and with a model in their own process."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from sglang_plug.__main__ import main

from .servers import Launcher, Server

TIMEOUT = 60.0
"""Maximum seconds to wait for expected text."""
QUESTION = "What is the capital of Peru?"


class Screen:
    """The output of a program that runs in a pseudo-terminal."""

    def __init__(self, terminal: int) -> None:
        self._terminal, self._unread = terminal, ""

    def wait_for(self, text: str) -> None:
        """Read up to the end of ``text``."""
        while text not in self._unread:
            readable, _, _ = select.select([self._terminal], [], [], TIMEOUT)
            assert readable, f"{text!r} does not come after {self._unread!r}"
            self._unread += os.read(self._terminal, 4096).decode()
        self._unread = self._unread.partition(text)[2]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A pipe in place of stdin; write to it before the command runs."""
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stdin", pipe)
    return pipe


def talk(pipe: io.StringIO, url: str, *lines: str, flags: tuple[str, ...] = ("--temperature", "0")) -> int:
    pipe.write("".join(f"{line}\n" for line in lines))
    pipe.seek(0)
    return main(["chat", "--url", url, *flags])


def test_one_question_and_its_answer(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--url", f"{server.url}/v1/", "-q", QUESTION, "--temperature", "0"]) == 0
    assert capsys.readouterr().out == "The capital of Peru is Lima.\n"


def test_a_conversation_is_sent_whole(server: Server, typed: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    assert talk(typed, server.url, "/system Be brief.", QUESTION, "/history", "/undo", "/history", "/exit", "Lost") == 0
    output = capsys.readouterr().out
    assert output.count(f"user: {QUESTION}") == 1
    assert output.count("system: Be brief.") == 2
    assert "assistant: " in output and "Lost" not in output


def test_parameters_limit_the_answer(server: Server, typed: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    assert talk(typed, server.url, "/set max_tokens 2", QUESTION) == 0
    captured = capsys.readouterr()
    assert captured.out == "  temperature = 0.0\n  max_tokens = 2\nThe capital\n"
    assert "the answer is cut off" in captured.err


def test_another_answer_replaces_the_last_one(
    server: Server, typed: io.StringIO, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "chat.json"
    assert talk(typed, server.url, "/retry", QUESTION, "/retry", f"/save {file}") == 0
    captured = capsys.readouterr()
    assert captured.err == "there is no message yet\n"
    assert captured.out.count("The capital of Peru is Lima.") == 2
    saved = json.loads(file.read_text())
    assert [message["role"] for message in saved["messages"]] == ["user", "assistant"]
    assert server.post("/v1/chat/completions", saved).status_code == 200


def test_a_refused_message_is_taken_back(
    server: Server, typed: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ("/image data:image/png;base64,AA", "What is this?", "/history", "/hlep", "/image nowhere.png")
    assert talk(typed, server.url, *lines) == 1
    captured = capsys.readouterr()
    assert "user:" not in captured.out
    errors = captured.err.splitlines()
    assert errors[0].startswith("error: status 400: ")
    assert errors[1] == "no command /hlep; did you mean '/help'?"
    assert "nowhere.png" in errors[2]


def test_a_line_goes_on_after_a_backslash(
    server: Server, typed: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    assert talk(typed, server.url, "What is the capital\\", "of Peru?", "/history") == 0
    assert "user: What is the capital\nof Peru?\n" in capsys.readouterr().out


def test_a_text_is_continued(server: Server, typed: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    greedy = ["--temperature", "0", "--max-tokens", "3", "--echo"]
    assert main(["complete", "--url", server.url, "--prompt", "The capital of Peru is", *greedy]) == 0
    once = capsys.readouterr().out
    assert once.startswith("The capital of Peru is") and len(once) > len("The capital of Peru is\n")
    typed.write("The capital of Peru is\n")
    typed.seek(0)
    assert main(["complete", "--url", server.url, *greedy]) == 0
    assert capsys.readouterr().out == once


def test_a_key_is_sent(module_launcher: Launcher, capsys: pytest.CaptureFixture[str]) -> None:
    locked = module_launcher.in_thread("--api-key", "secret", "--grammar-backend", "none")
    call = ["chat", "--url", locked.url, "-q", "Hello", "--max-tokens", "1"]
    assert main(call) == 1
    assert capsys.readouterr().err.startswith("error: status 401: ")
    assert main([*call, "--api-key", "secret"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--url", "http://127.0.0.1:9"], "error: no answer from http://127.0.0.1:9/v1/"),
        (["--url", "nonsense"], "--url 'nonsense' is not an address such as http://127.0.0.1:30000"),
        (["--url", "http://127.0.0.1:9", "--dtype", "float32"], "--dtype has no effect with --url"),
        (["some-model", "--url", "http://127.0.0.1:9"], "MODEL has no effect with --url"),
        (["--model-name", "demo"], "--model-name belongs to --url"),
        (["--image", "nowhere.png"], "--image: [Errno 2]"),
    ],
)
def test_mistakes_are_explained(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "-q", "Hello", *arguments]) in (1, 2)
    assert message in capsys.readouterr().err


def test_a_model_of_its_own_on_a_terminal(tmp_path: Path) -> None:
    """The chat works in a pseudo-terminal: the prompt, a command, the answer, and the history on disk."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
    program = [sys.executable, "-m", "sglang_plug", "chat", "--temperature", "0", "--max-total-tokens", "4096"]
    process = subprocess.Popen(
        [*program, "--grammar-backend", "none"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(tmp_path), "TERM": "dumb"},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        screen = Screen(ours)
        for line, reply in ((QUESTION, "Peru is Lima."), ("/model", "sglang-plug-demo\r\n"), ("/exit", "")):
            screen.wait_for("> ")
            os.write(ours, f"{line}\n".encode())
            if reply:
                screen.wait_for(reply)
        assert process.wait(TIMEOUT) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    history = tmp_path / "sglang-plug" / "chat_history"
    assert QUESTION in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
