"""Responses: made, streamed, remembered, cancelled, deleted."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any

from sglang_plug import Constraint
from sglang_plug_api.constraints import FORMATS, by_backend, of_fields
from sglang_plug_api.errors import SHOWN, ApiError, from_exception
from sglang_plug_api.job import Job, new_id
from sglang_plug_api.protocol.base import refuse
from sglang_plug_api.protocol.items import check_outputs
from sglang_plug_api.protocol.openai import MAX_MESSAGES
from sglang_plug_api.protocol.responses import ResponsesBody
from sglang_plug_api.protocol.tools import FlatNamedTool
from sglang_plug_api.reasoning import reasoned
from sglang_plug_api.sampling import Sampling
from sglang_plug_api.streaming import NamedEvent
from sglang_plug_api.text import TextEngine
from sglang_plug_api.tools import Tooling, tooling

from .call import Call
from .prompt import Message, render
from .store import ResponseStore, Stored

logger = logging.getLogger(__name__)


class Responses:
    """All responses of this process. Others that serve the same address know nothing of them."""

    def __init__(self, engine: TextEngine) -> None:
        config = engine.config
        self._engine = engine
        self._store = ResponseStore(config.max_stored_responses, config.max_stored_response_bytes)
        self._running: dict[str, Call] = {}

    async def prepare(self, body: ResponsesBody, request: str = "") -> Call:
        """Render, tokenise and check. Raises ``ApiError``.

        ``request``: what the caller calls this request; the response has an id of its own.
        """
        self._engine.check_model(body.model)
        _refuse_missing_features(body)
        messages = self._messages(body)
        constraint = _constraint(body)
        tools = _tooling(self._engine, body, has_format=constraint is not None)
        reading = tools.reading(self._engine.parsers)
        tokens = await render(
            self._engine,
            body.instructions,
            messages,
            tools=tools.shown,
            room=body.max_output_tokens or 1,
            shorten=body.truncation == "auto",
        )
        constraint = by_backend(tools.constraint, body) or constraint
        reading, preamble = reasoned(
            reading,
            self._engine.parsers.reasoning,
            self._engine.tokenizer,
            tokens,
            constrained=constraint is not None,
            calls=tools.constraint is not None,
        )
        given = body.sampling() | ({"skip_special_tokens": False} if reading.needs_special_tokens else {})
        job = Job(
            id=f"resp_{new_id()}",
            request=request,
            tokens=tokens,
            sampling=_sampling(self._engine, given, len(tokens)),
            constraint=constraint,
            preamble=preamble,
            priority=body.priority or 0,
            salt=body.salt,
        )
        return Call(self._engine, body, messages, job, reading, keep=body.store is not False and self._store.enabled)

    async def answer(self, call: Call) -> dict[str, Any]:
        """The whole response."""
        call.add(await self._engine.complete(call.job))
        await call.count_reasoning()
        call.close()
        self._remember(call)
        return call.show()

    async def events(self, call: Call) -> AsyncGenerator[NamedEvent, None]:
        """The response as it grows; the first event waits for the first token, so that refusals come before it.

        Whatever ends the stream, the response is remembered with what it has.
        """
        error: ApiError | None = None
        try:
            async with contextlib.aclosing(self._engine.stream(call.job)) as pieces:
                async for piece in pieces:
                    if call.id not in self._running:
                        self._running[call.id] = call
                        for event in call.opening():
                            yield event
                    for event in call.add(piece):
                        yield event
            await call.count_reasoning()
        except Exception as failure:
            if call.id not in self._running:
                raise
            error = from_exception(failure)
            logger.warning("response %s failed: %s", call.id, failure, exc_info=error.status == 500)
        finally:
            call.close(error)
            if self._running.pop(call.id, None) is not None:
                self._remember(call)
        for event in call.closing():
            yield event

    def retrieve(self, id: str) -> Mapping[str, Any]:
        """A remembered response, or one that is being made and will be. Raises ``ApiError``."""
        running = self._running.get(id)
        if running is not None and running.keep:
            return running.show()
        return self._stored(id).answer

    def cancel(self, id: str) -> Mapping[str, Any]:
        """End a response; of one that has ended already nothing changes. Raises ``ApiError``."""
        running = self._running.get(id)
        if running is None:
            return self._stored(id).answer
        running.cancel()
        return running.show()

    def delete(self, id: str) -> dict[str, Any]:
        """Forget a response, and end it if it is being made. Raises ``ApiError``."""
        running = self._running.get(id)
        if running is not None and running.keep:
            running.keep = False
            running.cancel()
        elif not self._store.delete(id):
            raise _unknown(id)
        return {"id": id, "object": "response", "deleted": True}

    def _messages(self, body: ResponsesBody) -> list[Message]:
        """The conversation up to and with the input. Raises ``ApiError``."""
        fresh = body.messages()
        if not fresh:
            raise ApiError("input cannot be empty", param="input")
        messages = [*self._before(body.previous_response_id), *fresh]
        if len(messages) > MAX_MESSAGES:
            raise ApiError(f"the conversation has more than {MAX_MESSAGES} messages", param="previous_response_id")
        try:
            check_outputs(messages)
        except ValueError as error:
            raise ApiError(str(error), param="input") from None
        return messages

    def _before(self, id: str | None) -> list[Message]:
        """What was said up to and with the response ``id``."""
        if id is None:
            return []
        found = self._store.get(id)
        if found is None or found.answer["status"] == "failed":
            trouble = "is still being made" if id in self._running else "not found" if found is None else "failed"
            raise ApiError(
                f"Previous response with id {id[:SHOWN]!r} {trouble}.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return list(found.messages)

    def _stored(self, id: str) -> Stored:
        found = self._store.get(id)
        if found is None:
            raise _unknown(id)
        return found

    def _remember(self, call: Call) -> None:
        if call.keep:
            self._store.put(call.id, Stored(call.show(), call.conversation))


def _sampling(engine: TextEngine, given: Mapping[str, Any], prompt: int) -> Sampling:
    with _renamed({"max_tokens": "max_output_tokens", "max_new_tokens": "max_output_tokens"}):
        return engine.defaults.complete(given, prompt, None)


def _constraint(body: ResponsesBody) -> Constraint | None:
    format = body.text.format if body.text else None
    with _renamed(dict.fromkeys(("response_format", *FORMATS), "text.format")):
        return of_fields(body, None if format is None else format.as_response_format())


def _tooling(engine: TextEngine, body: ResponsesBody, *, has_format: bool) -> Tooling:
    tools = [one.nested() for one in body.tools or ()]
    choice = body.tool_choice.nested() if isinstance(body.tool_choice, FlatNamedTool) else body.tool_choice
    try:
        return tooling(engine.parsers, tools, choice, body.parallel_tool_calls, has_format=has_format)
    except ApiError as error:
        error.param = error.param and error.param.replace(".function.", ".")
        raise


@contextlib.contextmanager
def _renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Errors about fields that other routes call otherwise name those of this one."""
    try:
        yield
    except ApiError as error:
        error.param = names.get(error.param or "", error.param)
        raise


def _unknown(id: str) -> ApiError:
    return ApiError(f"Response with id {id[:SHOWN]!r} not found.", 404, param="response_id", code="response_not_found")


def _refuse_missing_features(body: ResponsesBody) -> None:
    """What would be ignored or broken silently. Raises ``ApiError``."""
    refuse(body, "background", remedy="use stream")
    refuse(body, "top_logprobs", remedy="use logprobs on /v1/chat/completions")
    if any(value is not None for value in (body.reasoning or {}).values()):
        raise ApiError("reasoning is not supported by this model", param="reasoning")
