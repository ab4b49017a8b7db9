"""Tests of helpers for documents and scripts, under SGLang's names."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest

from sglang_plug_lang import function, gen, print_highlight
from sglang_plug_lang.utils import (
    download_and_cache_file,
    dump_state_text,
    encode_image_base64,
    http_request,
    is_in_ci,
    read_jsonl,
)


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
