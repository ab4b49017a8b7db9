"""The engines that compute prompts for decode engines."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence

from sglang_plug import EngineError, Output, Request, RequestError

from .checked_routing import CheckedRouting
from .group import MAX_ATTEMPTS
from .replica import Replica
from .router import HEARTBEAT_TIMEOUT, Router

logger = logging.getLogger(__name__)


class PrefillEngines:
    """Chooses an engine for each prompt, and another one if that fails.

    Args:
        replicas: the engines.
        routing: chooses one of those that serve.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self, replicas: Sequence[Replica], routing: CheckedRouting, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._routing, self.router = routing, Router(replicas, routing, clock)

    async def compute(self, request: Request) -> Output | None:
        """Let an engine serve a request; return its last output, or ``None`` if no engine could."""
        tried = list[int]()
        while len(tried) < MAX_ATTEMPTS:
            replica = self.router.choose(request, tried)
            if replica is None or replica.client.heartbeat_age > HEARTBEAT_TIMEOUT:
                return None
            tried.append(replica.replica)
            try:
                return await _last_output(replica, request)
            except RequestError as error:
                logger.info("Request %r is computed by a decode engine: %s", request.id, error)
                return None
            except EngineError as error:
                logger.info("Request %r: prefill engine %d failed: %s", request.id, replica.replica, error)
        return None

    def forget(self, number: int) -> None:
        """Forget the prompts that an engine has computed."""
        self._routing.forget(number)


async def _last_output(replica: Replica, request: Request) -> Output | None:
    last = None
    async with contextlib.aclosing(replica.outputs(request)) as outputs:
        async for output in outputs:
            last = output
    return last
