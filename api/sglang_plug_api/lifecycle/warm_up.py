"""Warm-up: the first request, which the server itself makes before it reports that it is ready."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from sglang_plug import EngineError, RequestError
from sglang_plug_api.pooling.pooling import probe_model
from sglang_plug_api.text.text_engine import TextEngine

logger = logging.getLogger(__name__)

PROMPT = "The capital city of France is"
TOKENS = 8
SERVER_ERROR = 500
"""Status of a request that failed through no fault of its own."""
POLL = 0.05


class WarmUpError(RuntimeError):
    """The warm-up request failed in a way that every other request would."""


async def warm_up_until_served(engine: TextEngine) -> None:
    """Warm up until a request was served, or refused for a reason of its own.

    If the engine fails during the request, wait until it is restarted, or this is cancelled, and try again.
    Raises ``WarmUpError`` if no request will be served.
    """
    while True:
        try:
            await warm_up(engine)
        except RequestError as error:
            if error.status == SERVER_ERROR:
                raise WarmUpError(f"the warm-up request failed, as every other would: {error}") from error
            logger.warning("the warm-up request failed: %s", error)
        except Exception as error:
            logger.warning("the warm-up request failed: %s", error)
        if engine.client.failure is None:
            return
        while engine.client.failure is not None:
            await asyncio.sleep(POLL)


async def warm_up(engine: TextEngine) -> None:
    """Serve one short request, then empty the prefix cache."""
    tokens = await engine.encode(PROMPT) if engine.has_text else [0]
    await probe_model(engine, tokens, new_tokens=TOKENS)
    with contextlib.suppress(EngineError, RequestError):
        await engine.client.control("flush_cache", stored=False)
