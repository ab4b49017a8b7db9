"""Fixtures: applications in this process, over an engine in a thread, with the demo model."""

from __future__ import annotations

import argparse
import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from sglang_plug import EngineClient, EngineLaunch, PluginOptions, Plugins
from sglang_plug.clients.thread_client import ThreadClient
from sglang_plug_api.http.app import build_app
from sglang_plug_api.http.middleware import GateState
from sglang_plug_api.lifecycle.assembly import assemble
from sglang_plug_api.options.parsing import server_config

from .streaming import Streaming

TIMEOUT = 240.0


class App:
    """An application that tests call without a running event loop, with options of ``sglang-plug serve``.

    Args:
        client: makes the client of the engine; ``None``: an engine in a thread.
    """

    def __init__(self, client: Callable[[EngineLaunch], EngineClient] | None = None, **options: Any) -> None:
        plugins = Plugins.discover()
        config = server_config(argparse.Namespace(**{"device": "cpu", "max_total_tokens": 4096, **options}), plugins)
        self.runner = asyncio.Runner()
        launch = EngineLaunch(config=config.engine, plugins=plugins)
        self._engine = ThreadClient(launch.config, launch.plugins) if client is None else client(launch)
        self.info = self.run(self._engine.start())
        self.engine = assemble(config, plugins, self._engine, self.info)
        self.gate = GateState()
        self.application = build_app(self.engine, plugins, self.gate)
        transport = httpx.ASGITransport(self.application, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=TIMEOUT)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the event loop of the application."""
        return self.runner.run(work)

    def begin(self, path: str, body: Any) -> Streaming:
        """Send a POST request whose answer is read as it arrives; call this in the application's event loop."""
        return Streaming(self.application, path, body)

    def get(self, path: str, **more: Any) -> httpx.Response:
        """Send a GET request."""
        return self.run(self.client.get(path, **more))

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        """Send a POST request with a JSON body."""
        return self.run(self.client.post(path, json=body, **more))

    def answer(self, path: str, body: Any = None) -> Any:
        """Return the JSON answer to a POST request, which must succeed."""
        response = self.post(path, body)
        assert response.status_code == 200, response.text
        return response.json()

    def refusal(self, path: str, body: Any, status: int = 400) -> dict[str, Any]:
        """Return the nested error of a POST request, which must be refused."""
        response = self.post(path, body)
        assert response.status_code == status, response.text
        error: dict[str, Any] = response.json()["error"]
        assert response.json()["code"] == status and error["message"]
        return error

    def is_whole(self) -> bool:
        """Return True if the engine has no request, and every KV slot is free or cached."""
        info = self.run(self._engine.control("info"))
        slots = info["slots"]
        return (info["running"], info["waiting"], slots["free"] + slots["cached"]) == (0, 0, slots["capacity"])

    def close(self) -> None:
        """Stop the engine."""
        self.run(self.client.aclose())
        self.run(self._engine.close())
        self.runner.close()


@pytest.fixture(scope="session")
def apps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., App]]:
    """Yield a function that makes one application for each set of options: ``apps(**options)``."""
    started: list[App] = []

    @functools.cache
    def start(**options: Any) -> App:
        started.append(App(file_storage_path=str(tmp_path_factory.mktemp("storage")), **options))
        return started[-1]

    yield start
    for app in started:
        app.close()


@pytest.fixture(scope="session")
def app(apps: Callable[..., App]) -> App:
    """The application of the demo model with default options."""
    return apps()


@pytest.fixture
def scripted_application(text_engine: Any) -> Callable[..., FastAPI]:
    """Return a function that makes an application over ``scripted``: ``scripted_application(tool_call_parser=…, …)``.

    ``files`` are one-file plugins.
    """
    installed = Plugins.discover()

    def make(tool_call_parser: str = "hermes", *, files: tuple[str, ...] = (), **options: Any) -> FastAPI:
        plugins = Plugins.discover(PluginOptions(files=files)) if files else installed
        engine = text_engine(tool_call_parser=tool_call_parser, plugins=plugins, context_length=4096, **options)
        return build_app(engine, plugins, GateState())

    return make


@pytest.fixture
async def scripted_client(
    scripted_application: Callable[..., FastAPI],
) -> AsyncIterator[Callable[..., httpx.AsyncClient]]:
    """Yield a function that makes a client of an application over ``scripted``, see ``scripted_application``."""
    clients: list[httpx.AsyncClient] = []

    def make(*names: str, **options: Any) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(scripted_application(*names, **options), raise_app_exceptions=False)
        clients.append(httpx.AsyncClient(transport=transport, base_url="http://localhost"))
        return clients[-1]

    yield make
    for client in clients:
        await client.aclose()
