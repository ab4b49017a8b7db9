"""``sglang-plug plugins search`` finds distributions in the built-in index, a file, or at an address."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sglang_plug.__main__ import main

OTHER = """\
[[plugins]]
distribution = "of-tomorrow"
kinds = ["eviction"]
summary = "evicts what will not be used"
homepage = "https://example.org/of-tomorrow"
licence = "MIT"
contract = ">=99.0,<100"
"""


class Handler(BaseHTTPRequestHandler):
    """Serves an index, a redirect to it, and an index that is too large."""

    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/index.toml")
            self.end_headers()
        elif self.path in ("/index.toml", "/large"):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(OTHER.encode() if self.path == "/index.toml" else b"#" * (5 << 20))
        else:
            self.send_error(404)

    def log_message(self, *arguments: object) -> None: ...


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_words_and_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "search", "Segmented", "lru"]) == 0
    printed = capsys.readouterr().out
    assert "sglang-plug-slru" in printed and "eviction | Apache-2.0 | contract >=1.0,<2" in printed
    assert main(["plugins", "search", "--kind", "logits-processor"]) == 0
    printed = capsys.readouterr().out
    assert "sglang-plug-watermark" in printed and "2 of " in printed


def test_nothing_matches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "search", "quantum"]) == 1
    assert capsys.readouterr().out.startswith("0 of ")


def test_another_file_and_a_contract_that_is_not_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "index.toml"
    file.write_text(OTHER)
    assert main(["plugins", "search", "--index", str(file)]) == 0
    assert "of-tomorrow (not for this contract, 1." in capsys.readouterr().out


@pytest.mark.parametrize("path", ["index.toml", "moved"])
def test_an_address(path: str, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "search", "tomorrow", "--index", f"{address}/{path}"]) == 0
    assert "of-tomorrow" in capsys.readouterr().out


@pytest.mark.parametrize(("path", "problem"), [("absent", "404"), ("large", "has more than 4 MiB")])
def test_an_address_without_an_index(path: str, problem: str, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "search", "--index", f"{address}/{path}"]) == 2
    assert problem in capsys.readouterr().err


def test_mistakes_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "search", "--kind", "evction"]) == 2
    assert "did you mean 'eviction'" in capsys.readouterr().err
    assert main(["plugins", "search", "--index", str(tmp_path / "absent.toml")]) == 2
    assert "absent.toml cannot be read" in capsys.readouterr().err
