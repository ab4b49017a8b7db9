"""A decode engine, whose prompts are computed by prefill engines and sent to it."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from sglang_plug import ConfigError, EngineClient, KVTransfer, Output, Request, SamplingParams, StepStats

Prefill = Callable[[Request], Awaitable[Output | None]]
"""Lets a prefill engine serve a request; returns its last output, or ``None`` if no engine could."""


class PrefilledClient(EngineClient):
    """Lets a prefill engine compute the prompt of a request, then the decode engine serve the request.

    The decode engine receives the keys and values of the prompt meanwhile, and computes what it lacks: the last tokens,
    or the whole prompt if the prefill engine failed. The prefill engine's token is not used.

    Args:
        client: the decode engine.
        prefill: serves a request with a prefill engine.
    """

    def __init__(self, client: EngineClient, prefill: Prefill) -> None:
        self._client = client
        self._prefill = prefill
        self._address = ""
        self._block_tokens = 0

    async def start(self) -> Mapping[str, Any]:
        """Start the engine. Raises ``ConfigError`` if none of its stores can receive blocks."""
        info = await self._client.start()
        try:
            described = await self._client.control("info")
            self._address = transfers_of(described)["address"]
            self._block_tokens = described["kv_stores"]["block_tokens"]
        except BaseException:
            await self._client.close()
            raise
        return info

    def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        """Serve a request, see ``EngineClient.submit``."""
        has_blocks = len(request.tokens) > self._block_tokens
        if has_blocks and generates(request) and not request.media:
            return self._submit_prefilled(request)
        return self._client.submit(request)

    async def _submit_prefilled(self, request: Request) -> AsyncGenerator[Output, None]:
        transfer = KVTransfer(id=uuid.uuid4().hex, address=self._address)
        prompt = await self._prefill(prompt_request(request, transfer))
        if prompt is not None and prompt.sends_prompt:
            request = replace(request, transfer=KVTransfer(id=transfer.id))
        async with contextlib.aclosing(self._client.submit(request)) as outputs:
            async for output in outputs:
                yield output if prompt is None else _with_cached_tokens(output, prompt)

    async def control(self, name: str, **arguments: Any) -> Any:
        """Run a control call of the decode engine; see ``EngineClient.control``."""
        return await self._client.control(name, **arguments)

    def on_step(self, listener: Callable[[StepStats], None]) -> None:
        """Call ``listener`` with the statistics of every step of the decode engine."""
        self._client.on_step(listener)

    @property
    def failure(self) -> str | None:
        """The reason why the decode engine cannot serve, or ``None``."""
        return self._client.failure

    async def wait_failed(self) -> str:
        """Wait until the decode engine has failed for good; return the reason."""
        return await self._client.wait_failed()

    @property
    def heartbeat_age(self) -> float:
        """Seconds without a heartbeat from the decode engine."""
        return self._client.heartbeat_age

    def kill(self) -> None:
        """End the decode engine at once."""
        self._client.kill()

    async def close(self) -> None:
        """Stop the decode engine."""
        await self._client.close()


def transfers_of(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the description of an engine's transfers. Raises ``ConfigError`` if it has no store that transfers."""
    transfers: Mapping[str, Any] | None = (info.get("kv_stores") or {}).get("transfers")
    if not transfers:
        raise ConfigError(
            "an engine that computes prompts for others, or generates from theirs, needs a KV store that can transfer "
            "blocks between engines: add 'transfer' to --kv-store, or leave that out"
        )
    return transfers


def generates(request: Request) -> bool:
    """Report whether a request is more than the computation of its prompt."""
    has_prompt_logprobs = request.logprobs is not None and request.logprobs.start >= 0
    return request.task == "generate" and request.params.max_new_tokens > 1 and not has_prompt_logprobs


def prompt_request(request: Request, transfer: KVTransfer) -> Request:
    """Return a request that computes the prompt of ``request`` and sends it; its only token is of no use."""
    return replace(
        request,
        params=SamplingParams(max_new_tokens=1, temperature=0.0),
        logprobs=None,
        constraint=None,
        reasoning_prefix=None,
        reasoning=None,
        transfer=transfer,
    )


def _with_cached_tokens(output: Output, prompt: Output) -> Output:
    """Return ``output`` with the tokens that were cached where the prompt was computed: sent ones were not cached."""
    return replace(output, cached_tokens=prompt.cached_tokens, loaded_tokens=prompt.loaded_tokens)
