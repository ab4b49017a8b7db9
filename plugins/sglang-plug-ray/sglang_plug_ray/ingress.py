"""The Serve deployment that answers HTTP: the server's own application, with engines in other replicas."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

from sglang_plug_api.plugin import Service, engine_group

from .arguments import Arguments
from .membership import Membership

logger = logging.getLogger(__name__)


class Ingress:
    """Runs a ``Service``. Serve calls its methods, and serves the application that one of them returns.

    Undecorated, so that Ray imports it instead of pickling it.

    Args:
        arguments: those of the application, as plain data.
        directory: the handle of the directory's deployment.
        engines: the handle of the engines' deployment, which makes it a part of the application.
    """

    async def __init__(self, arguments: dict[str, Any], directory: Any, engines: Any) -> None:  # type: ignore[misc]
        parsed = Arguments.model_validate(arguments)
        logging.getLogger("sglang_plug_api").setLevel(logging.INFO)
        config, plugins = await asyncio.to_thread(parsed.load)
        group = engine_group(config, plugins)
        self._service = Service(config, plugins, group)
        membership = Membership(group, directory, parsed.version, plugins)
        self._following = asyncio.create_task(membership.run())
        self._warming: asyncio.Task[None] | None = None

    async def __serve_build_asgi_app__(self) -> Any:
        """Wait for an engine; return the application."""
        app = await self._service.start()
        self._warming = asyncio.create_task(self._warm_up())
        return app

    async def _warm_up(self) -> None:
        await self._service.ready()
        gc.freeze()  # a collection of the long-lived objects would block all requests for tenths of a second

    async def check_health(self) -> None:
        """Raise if no request will be served, so that Serve replaces this replica."""
        if self._warming is not None and self._warming.done():
            self._warming.result()
        if self._following.done():
            raise RuntimeError("the ingress no longer receives updates of the directory")

    async def __del__(self) -> None:
        """Stop, after Serve has waited for the requests in flight."""
        if getattr(self, "_following", None) is None:
            return
        tasks = [task for task in (self._following, self._warming) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._service.stop()
