"""Starting, awaiting and ending processes."""

from __future__ import annotations

import contextlib
import io
import shlex
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sglang_plug_lang import (
    execute_shell_command,
    function,
    gen,
    launch_server_cmd,
    print_highlight,
    terminate_process,
    wait_for_server,
)
from sglang_plug_lang.utils import (
    PORTS,
    download_and_cache_file,
    dump_state_text,
    encode_image_base64,
    free_port,
    http_request,
    is_in_ci,
    read_jsonl,
)

FAMILY = """
import signal, subprocess, sys, time
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
process = subprocess.Popen([sys.executable, "-c", child], start_new_session=True, stdout=subprocess.PIPE)
process.stdout.readline()
open(sys.argv[1], "w").write(str(process.pid))
time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def until(holds: Any) -> None:
    deadline = time.monotonic() + 240
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_free_port_is_appended(capfd: Any) -> None:
    process, port = launch_server_cmd(
        "python -c 'import sys; print(sys.argv[1:], sys.executable)' \\\n --flag 'a b'", host="127.0.0.1"
    )
    assert process.wait() == 0
    assert capfd.readouterr().out == f"['--flag', 'a b', '--port', '{port}'] {sys.executable}\n"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
    assert port in range(*PORTS)


def test_where_those_ports_are_taken_any_other_will_do() -> None:
    with socket.socket() as other, socket.socket() as probe:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        port = free_port("127.0.0.1", ports=(taken, taken + 1))
        assert port != taken
        probe.bind(("127.0.0.1", port))


def test_a_given_port_is_used(capfd: Any) -> None:
    process, port = launch_server_cmd("python3 -c 'import sys; print(sys.argv[1:])'", port=1234)
    assert (process.wait(), port) == (0, 1234)
    assert capfd.readouterr().out == "['--port', '1234']\n"


def test_no_shell_is_involved(capfd: Any) -> None:
    assert execute_shell_command("echo $HOME `id` | cat").wait() == 0
    assert capfd.readouterr().out == "$HOME `id` | cat\n"
    for call in (execute_shell_command, launch_server_cmd):
        with pytest.raises(ValueError, match="empty"):
            call(" ")


def test_the_whole_family_ends(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    (tmp_path / "family.py").write_text(FAMILY)
    process = execute_shell_command(shlex.join(["python", str(tmp_path / "family.py"), str(file)]))
    until(lambda: file.exists() and file.read_text())
    child = int(file.read_text())
    assert alive(child)
    terminate_process(process)
    assert process.returncode == -signal.SIGTERM
    until(lambda: not alive(child))


def test_ending_what_has_ended() -> None:
    process = execute_shell_command("true")
    process.wait()
    terminate_process(process)
    assert process.returncode == 0


def test_waiting_for_a_server(answering: Any) -> None:
    attempts: list[int] = []

    def models(_: Any) -> tuple[int, Any]:
        attempts.append(1)
        return (503, {}) if len(attempts) < 3 else (200, {"data": []})

    answering.answers["/v1/models"] = models
    wait_for_server(answering.url + "/")
    assert len(attempts) == 3
    answering.answers["/v1/models"] = (401, {})
    wait_for_server(answering.url, api_key="sésame")


def test_waiting_in_vain() -> None:
    process = execute_shell_command("false")
    process.wait()
    with pytest.raises(RuntimeError, match="ended with 1"):
        wait_for_server("http://127.0.0.1:9", process=process)
    with pytest.raises(TimeoutError, match="within 0"):
        wait_for_server("http://127.0.0.1:9", timeout=0)


class Terminal(io.StringIO):
    """An output that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_highlighted_only_on_a_terminal() -> None:
    with contextlib.redirect_stdout(io.StringIO()) as file:
        print_highlight("plain")
    with contextlib.redirect_stdout(Terminal()) as terminal:
        print_highlight("bold")
    assert (file.getvalue(), terminal.getvalue()) == ("plain\n", "\033[1mbold\033[0m\n")


@pytest.mark.parametrize("value, expected", [("true", True), ("1", True), ("", False), ("False", False), ("0", False)])
def test_continuous_integration_is_told_by_the_environment(
    value: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", value)
    assert is_in_ci() is expected
    monkeypatch.delenv("CI")
    assert not is_in_ci()


def test_requests_and_their_responses(answering: Any) -> None:
    answering.answers["/echo"] = lambda body: (200, {"got": body})
    assert http_request(answering.url + "/echo", json={"a": 1}, api_key="key").json() == {"got": {"a": 1}}
    assert http_request(answering.url + "/echo").json() == {"got": None}
    assert http_request(answering.url + "/echo", method="POST").json() == {"got": None}
    refused = http_request(answering.url + "/none")
    assert (refused.status_code, refused.json()["error"]["message"]) == (404, "no such path")
    assert answering.requests[0][2]["Authorization"] == "Bearer key"


def test_lines_of_json(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text('# a comment\n{"a": "é"}\n\n[1]\n', encoding="utf-8")
    assert list(read_jsonl(file)) == [{"a": "é"}, [1]]


def test_a_file_is_downloaded_once(answering: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    answering.answers["/lines.jsonl"] = (200, "[1]\n[2]\n")
    for name in (None, tmp_path / "new" / "named.jsonl"):
        answering.requests.clear()
        files = {download_and_cache_file(answering.url + "/lines.jsonl", name) for _ in range(2)}
        assert [list(read_jsonl(file)) for file in files] == [[[1], [2]]]
        assert len(answering.requests) == 1
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 2


def test_a_failed_download_leaves_no_file(answering: Any, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nothing could be loaded from .*404"):
        download_and_cache_file(answering.url + "/none", tmp_path / "none")
    assert not list(tmp_path.iterdir())


def test_states_in_a_file(backend: Any, tmp_path: Path) -> None:
    file = tmp_path / "states.txt"
    state = function(lambda s: s.__iadd__("said " + gen("x"))).run()
    dump_state_text(file, [state, "text"])
    dump_state_text(str(file), [3], mode="a")
    lines = file.read_text().splitlines()
    assert [line for line in lines if line and set(line) != {"="} and " " in line.strip("=")] == [
        "=" * 40 + " 0 " + "=" * 40,
        "said <1>",
        "=" * 40 + " 1 " + "=" * 40,
        "=" * 40 + " 0 " + "=" * 40,
    ]
    assert "text" in lines and "3" in lines


def test_an_image_as_base64(tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(b"image")
    assert encode_image_base64(tmp_path / "image.png") == encode_image_base64(b"image") == "aW1hZ2U="
