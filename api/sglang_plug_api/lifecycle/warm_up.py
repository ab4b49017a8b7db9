"""Warm-up: the first requests, which the server itself makes before it reports that it is ready.

The first one shows that requests are served. The others let the engine learn how long its steps take, so that the time
of a step (``--target-itl-ms``) is kept from the first user's prompt on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from sglang_plug import EngineError, RequestError
from sglang_plug_api.pooling.pooling import probe_model
from sglang_plug_api.text.text_engine import TextEngine

logger = logging.getLogger(__name__)

PROMPT = "The capital city of France is"
TOKENS = 8
MEASURED_LENGTHS = ((160,), (12, 16, 20))
"""Lengths of the prompts that are served after the first one: a longer one alone, then a few together, which also
decode together. They are short because a CPU may need a tenth of a second for ten tokens of a large model."""
SHORT = 8
"""Length of one more prompt for each replica, if there are several."""
MEASURED_TOKENS = 4
"""Tokens of their outputs."""
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
    """Serve one short request, let the engine learn how long steps take, and empty the prefix cache."""
    tokens = await engine.encode(PROMPT) if engine.encoder.has_tokenizer else [0]
    computes_prompts_only = engine.config.role == "prefill"
    await probe_model(engine, tokens, new_tokens=1 if computes_prompts_only else TOKENS)
    if engine.info["tasks"][0] == "generate" and engine.config.engine.schedule.target_itl_ms:
        replicas = len(engine.info.get("replica_states", (None,)))
        first, short = 1, ((SHORT,),) if replicas > 1 else ()  # the first request was served by one replica only
        for lengths in (*short, *MEASURED_LENGTHS):
            await _serve_together(engine, lengths * replicas, first, 1 if computes_prompts_only else MEASURED_TOKENS)
            first += len(lengths) * replicas
    with contextlib.suppress(EngineError, RequestError):
        await engine.client.control("flush_cache", stored=False)


async def _serve_together(engine: TextEngine, lengths: Sequence[int], first: int, new_tokens: int) -> None:
    """Serve prompts of about ``lengths`` tokens at once. A refusal is only logged: limits may be lower than their sum.

    Their numbers begin with ``first``. Raises the error of an engine that failed.
    """
    longest = max(1, min(engine.info["context_length"], engine.info["max_total_tokens"]) - MEASURED_TOKENS - 1)
    prompts = [await _prompt(engine, number, min(length, longest)) for number, length in enumerate(lengths, first)]
    requests = (probe_model(engine, prompt, new_tokens=new_tokens) for prompt in prompts)
    for error in await asyncio.gather(*requests, return_exceptions=True):
        if isinstance(error, RequestError):
            logger.info("a request that measures the time of steps was not served: %s", error)
        elif isinstance(error, BaseException):
            raise error


async def _prompt(engine: TextEngine, number: int, length: int) -> list[int]:
    """Return a prompt of at most ``length`` tokens whose beginning depends on ``number``: no prefix is shared."""
    if not engine.encoder.has_tokenizer:
        return [number] * length
    words = " ".join(map(str, range(number, number + length)))
    return list(await engine.encode(words))[:length]
