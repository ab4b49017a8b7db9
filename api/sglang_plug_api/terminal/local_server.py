"""A server inside this process, for commands that are not given the address of another one."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import tempfile
import threading
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType

import uvicorn
from fastapi import FastAPI

from sglang_plug import Plugins
from sglang_plug_api.lifecycle.service import Service
from sglang_plug_api.options.config import ServerConfig

LOOPBACK = "127.0.0.1"
POLL = 0.02


class LocalServer:
    """Serves a model on a free port of the loopback interface until the context ends.

    The engine is a thread of this process. Requests need ``api_key``, which is drawn anew for each server, because
    other users of the machine can reach the port.

    Args:
        config: the options of ``sglang-plug serve``; address, keys and deployment are replaced.
        plugins: the plugins to load.
    """

    def __init__(self, config: ServerConfig, plugins: Plugins) -> None:
        self.api_key = secrets.token_urlsafe()
        self._config = replace(
            config,
            host=LOOPBACK,
            port=0,
            api_keys=(self.api_key,),
            admin_api_key=None,
            deployment="thread",
            replicas=1,
            prefill_replicas=0,
            role=None,
            prefill_servers=(),
            engine_restart=False,
        )
        self._plugins = plugins
        self._address: Future[str] = Future()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="local-server", daemon=True)

    @property
    def url(self) -> str:
        """The address, once the context is entered."""
        return self._address.result()

    def __enter__(self) -> LocalServer:
        """Start the server and wait until it listens. Raises ``ConfigError`` if the model cannot be served."""
        self._thread.start()
        try:
            self._address.result()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server and free the model's memory."""
        self._stop()

    def _stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        logging.getLogger("torch").setLevel(logging.WARNING)
        try:
            with tempfile.TemporaryDirectory(prefix="sglang-plug-local-") as folder:  # a server may use the usual one
                storage = replace(self._config.storage, file_storage_path=folder)
                self._config = replace(self._config, storage=storage)
                asyncio.run(self._serve())
        except BaseException as error:
            if not self._address.done():
                self._address.set_exception(error)

    async def _serve(self) -> None:
        service = Service(self._config, self._plugins)
        try:
            await self._listen(service, await service.start())
        finally:
            await service.stop()

    async def _listen(self, service: Service, app: FastAPI) -> None:
        server = uvicorn.Server(uvicorn.Config(app, http="h11", ws="none", log_config=None, access_log=False))
        with socket.create_server((LOOPBACK, 0)) as listener:
            serving = asyncio.create_task(server.serve(sockets=[listener]), name="local server")
            while not (server.started or serving.done()):
                await asyncio.sleep(POLL)
            ready = asyncio.create_task(service.ready(), name="warm-up")  # requests are served meanwhile
            self._address.set_result(f"http://{LOOPBACK}:{listener.getsockname()[1]}")
            while not (self._stopping.is_set() or serving.done()):
                await asyncio.sleep(POLL)
            service.drain()
            ready.cancel()
            await asyncio.gather(ready, *service.cancel(), return_exceptions=True)
            server.should_exit = True
            await serving
