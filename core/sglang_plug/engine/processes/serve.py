"""Serving until the end, in a process or in a thread: build an engine, run it, and report its start or failure."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from sglang_plug.config import ConfigError
from sglang_plug.engine.messages.api_messages import Failed, FromEngine, Ready
from sglang_plug.plugins.registry import PluginError

if TYPE_CHECKING:
    from sglang_plug.engine.loop import EngineLoop
    from sglang_plug.plugins.lifecycle import ComponentLifecycle

logger = logging.getLogger(__name__)


def serve(
    build: Callable[[], tuple[EngineLoop, ComponentLifecycle]],
    send: Callable[[FromEngine], None],
    *,
    before_ready: Callable[[], None] = lambda: None,
) -> Failed | None:
    """Serve until the engine is closed; return the message about a failure, which was sent, or ``None``.

    Args:
        build: returns the engine, and the services of the plugins that start with it.
        send: sends a message to the API.
        before_ready: called when everything has started, before requests may arrive.
    """
    describe: Callable[[BaseException], str] = repr
    try:
        engine, lifecycle = build()
        describe = engine.describe

        def begin() -> None:
            lifecycle.start(engine.info)
            before_ready()
            send(Ready(engine.info))

        engine.run(begin)
        return None
    except ConfigError as error:
        if isinstance(error, PluginError) and error.__cause__ is not None:
            logger.error("%s", error, exc_info=error.__cause__)
        failed = Failed(str(error), configuration=True)
    except BaseException as error:
        logger.exception("the engine failed")
        failed = Failed(describe(error))
    send(failed)
    return failed
