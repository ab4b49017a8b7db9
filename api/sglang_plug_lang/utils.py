"""Helpers for documents and scripts: servers, images, files and requests, under the names that SGLang has for them."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import httpx

from .http_client import bearer, certificates
from .images import content_of_url, image_bytes, image_size
from .server_process import execute_shell_command, launch_server_cmd, terminate_process, wait_for_server
from .state import ProgramState

__all__ = [
    "HttpResponse",
    "download_and_cache_file",
    "dump_state_text",
    "encode_image_base64",
    "execute_shell_command",
    "http_request",
    "is_in_ci",
    "launch_server_cmd",
    "load_image",
    "print_highlight",
    "read_jsonl",
    "terminate_process",
    "wait_for_server",
]


def is_in_ci() -> bool:
    """Return True in continuous integration, where services set the environment variable ``CI``."""
    return os.environ.get("CI", "").strip().lower() not in ("", "0", "false", "no")


def print_highlight(content: object) -> None:
    """Print in bold on a terminal, plainly elsewhere."""
    print(f"\033[1m{content}\033[0m" if sys.stdout.isatty() else content, flush=True)


def load_image(source: str | bytes | Path) -> tuple[bytes, tuple[int, int] | None]:
    """Return the bytes of an image (from a URL, a file, a data URL, or bytes) and its width and height.

    The size is ``None`` for formats other than PNG, GIF and JPEG. Raises ``OSError`` if the image cannot be read.
    """
    content = image_bytes(source)
    return content, image_size(content)


def encode_image_base64(source: str | bytes | Path) -> str:
    """Return an image (from a URL, a file, a data URL, or bytes) as base64."""
    return base64.b64encode(image_bytes(source)).decode("ascii")


def download_and_cache_file(url: str, filename: str | Path | None = None) -> str:
    """Return the name of a file with the content of a URL, which is downloaded if the file does not exist.

    The default file is in the user's cache. Raises ``OSError`` if the content cannot be downloaded or written.
    """
    if filename is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        name = Path(url.partition("?")[0]).name
        filename = cache / "sglang-plug" / "downloads" / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}-{name}"
    path = Path(filename)
    if not path.is_file():
        content = content_of_url(url)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as unfinished:
            unfinished.write(content)
        Path(unfinished.name).replace(path)  # several programs may download it at the same time
    return str(path)


def read_jsonl(filename: str | Path) -> Iterator[Any]:
    """Yield the values of a file with one JSON value in each line; lines that begin with ``#`` are comments."""
    with Path(filename).open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip() and not line.startswith("#"):
                yield json.loads(line)


def dump_state_text(filename: str | Path, states: Sequence[object], mode: Literal["w", "a"] = "w") -> None:
    """Write the texts of states (or other values) to a file, each between rules of ``=``."""
    with Path(filename).open(mode, encoding="utf-8") as file:
        for index, state in enumerate(states):
            text = state.text() if isinstance(state, ProgramState) else str(state)
            file.write(f"{'=' * 40} {index} {'=' * 40}\n{text}\n{'=' * 80}\n\n")


class HttpResponse:
    """Response of ``http_request``."""

    def __init__(self, response: httpx.Response) -> None:
        self.status_code, self.text = response.status_code, response.text

    def json(self) -> Any:
        """Return the decoded body."""
        return json.loads(self.text)


def http_request(
    url: str,
    json: Any = None,
    api_key: str | None = None,
    verify: bool | str | None = None,
    method: str | None = None,
) -> HttpResponse:
    """Send a request, by default ``POST`` if there is a body; return also responses with an error status."""
    chosen = method or ("GET" if json is None else "POST")
    with httpx.Client(headers=bearer(api_key), verify=certificates(verify), timeout=None) as client:
        return HttpResponse(client.request(chosen, url, json=json))
