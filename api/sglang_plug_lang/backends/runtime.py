"""Backends for a server with ``/generate``: a running one, or one that the program starts."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Generator
from typing import Any

from sglang_plug_lang.errors import BackendError
from sglang_plug_lang.http_client import JsonClient
from sglang_plug_lang.server_process import launch_server, terminate_process, wait_for_server
from sglang_plug_lang.templates import template_for, template_named

from .native import NativeGeneration


class _HttpTransport:
    """Calls ``/generate`` of a server."""

    def __init__(self, client: JsonClient) -> None:
        self._client = client

    def generate(self, body: dict[str, Any]) -> Any:
        """Return the response."""
        return self._client.post("/generate", body)

    def events(self, body: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
        """Yield the response as it grows."""
        return self._client.events("/generate", {**body, "stream": True})


class RuntimeEndpoint(NativeGeneration):
    """A running server; its model determines the chat template.

    Args:
        base_url: URL such as ``http://localhost:30000``.
        api_key: the server's ``--api-key``.
        verify: False accepts any certificate; a text is the name of a file with trusted certificates.
        chat_template_name: a template instead of the one chosen by the model's name.

    Raises ``BackendError`` if the server does not answer.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: bool | str | None = None,
        chat_template_name: str | None = None,
    ) -> None:
        self._client = JsonClient(base_url, api_key, verify)
        try:
            self.model_info: dict[str, Any] = self._client.get("/get_model_info")
            name, path = chat_template_name, self.model_info["model_path"]
            template = template_for(path) if name is None else template_named(name)
        except BaseException:
            self._client.close()
            raise
        super().__init__(_HttpTransport(self._client), template)

    @property
    def base_url(self) -> str:
        """The server's URL."""
        return self._client.base_url

    @property
    def endpoint(self) -> RuntimeEndpoint:
        """The backend itself; programs use it because SGLang's ``Runtime`` has a separate one."""
        return self

    def get_model_name(self) -> str:
        """Return the path or hub id of the model."""
        return str(self.model_info["model_path"])

    def flush_cache(self) -> bool:
        """Empty the prefix cache; return False if requests are running."""
        return self._client.status("POST", "/flush_cache") == 200

    def get_server_info(self) -> dict[str, Any]:
        """Return configuration, limits and load."""
        info: dict[str, Any] = self._client.get("/server_info")
        return info

    def start_profile(self) -> None:
        """Start profiling in the server."""
        self._profile("/start_profile")

    def stop_profile(self) -> None:
        """End profiling, and write what was recorded."""
        self._profile("/stop_profile")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _profile(self, path: str) -> None:
        status = self._client.status("POST", path)
        if status != 200:
            raise BackendError(f"the server refused {path}", status)


class Runtime(RuntimeEndpoint):
    """A server that is started with this interpreter, and ended by ``shutdown`` or with the program.

    Args:
        model_path: a local folder or a hub id; ``None`` takes the embedded demo model.
        timeout: seconds to wait for the server.
        launch_timeout: the same, under SGLang's name.
        options: options of ``sglang-plug serve``, with underscores: ``max_total_tokens=4096``.
    """

    def __init__(
        self,
        model_path: str | None = None,
        *,
        timeout: float = 600.0,
        launch_timeout: float | None = None,
        chat_template_name: str | None = None,
        **options: Any,
    ) -> None:
        arguments = [sys.executable, "-P", "-m", "sglang_plug", "serve"]
        arguments += [] if model_path is None else ["--model-path", model_path]
        for name, value in options.items():
            flag = "--" + name.replace("_", "-")
            arguments += [flag] if value is True else [] if value in (None, False) else [flag, str(value)]
        self._process, port = launch_server(arguments, host="127.0.0.1")
        self._end = weakref.finalize(self, terminate_process, self._process)
        limit = timeout if launch_timeout is None else launch_timeout
        try:
            key = options.get("api_key")
            url = f"http://127.0.0.1:{port}"
            wait_for_server(url, timeout=limit, process=self._process, api_key=key)
            super().__init__(url, api_key=key, chat_template_name=chat_template_name)
        except BaseException:
            self._end()
            raise

    @property
    def url(self) -> str:
        """The server's URL."""
        return self.base_url

    @property
    def generate_url(self) -> str:
        """URL of the server's ``/generate``."""
        return self.base_url + "/generate"

    def shutdown(self) -> None:
        """End the server."""
        self.close()
        self._end()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
